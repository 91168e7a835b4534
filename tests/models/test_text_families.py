"""The family that embeds class names is found from the base's own folder."""

import json
from pathlib import Path

import pytest

from merganser.checkpoints.kinds import ParameterRules
from merganser.checkpoints.reading import open_checkpoint
from merganser.errors import InputError
from merganser.models import EmbedsTexts, families_with, text_family_of
from merganser.overlays import task_model
from tests.merges import merge_checkpoints
from tests.tiny_clip import CONFIG, write_clip
from tests.tiny_transformers import write_model


def test_the_families_that_embed_texts_are_the_dual_encoders() -> None:
    assert families_with(EmbedsTexts) == ["clip", "open_clip", "siglip"]


def test_a_folder_says_which_family_embeds_its_texts(tmp_path: Path) -> None:
    write_clip(tmp_path / "one")
    write_model(tmp_path / "other", "clip")
    assert text_family_of(tmp_path / "one") == "open_clip"
    assert text_family_of(tmp_path / "other") == "clip"


def test_the_weights_decide_where_a_folder_has_the_configurations_of_both(tmp_path: Path) -> None:
    write_clip(tmp_path / "one")
    write_model(tmp_path / "other", "clip")
    (tmp_path / "other/open_clip_config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "one/config.json").write_bytes((tmp_path / "other/config.json").read_bytes())
    assert text_family_of(tmp_path / "one") == "open_clip"
    assert text_family_of(tmp_path / "other") == "clip"


def test_a_language_model_is_refused_naming_the_families_that_embed_texts(tmp_path: Path) -> None:
    write_model(tmp_path / "llama", "llama, tied")
    with pytest.raises(InputError, match=r"(?s)llama: class names .*no clip: .*no open_clip: "):
        text_family_of(tmp_path / "llama")


def test_models_of_transformers_clip_are_merged_by_their_class_names(tmp_path: Path) -> None:
    for seed, name in enumerate(("base", "dark", "light")):
        write_model(tmp_path / name, "clip", seed=seed)
    models = {name: tmp_path / name for name in ("dark", "light")}
    classes = {"dark": ["dark", "red"], "light": ["light"]}
    rules = ParameterRules(merged=("vision_model.*",))
    out = tmp_path / "out"
    merge_checkpoints("dts_unseen", {}, tmp_path / "base", models, out, classes=classes, rules=rules, device="cpu")
    own, base = dict(task_model(out, "dark")), open_checkpoint(tmp_path / "base")
    moved = {name for name in base.names if not own[name].equal(base.read(name))}
    assert moved
    assert all(name.startswith("vision_model.") for name in moved)
