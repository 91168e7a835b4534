"""Numbers in foreign configurations: refused by their names before anything is built from them, and no more."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import open_clip
import pytest
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from merganser.checkpoints import bounded
from merganser.checkpoints.architecture import architecture_of, check_numbers
from merganser.checkpoints.companions import check_model
from merganser.checkpoints.known_models import without_values
from merganser.checkpoints.reading import open_checkpoint
from merganser.errors import InputError
from merganser.models import get_family
from tests.support import each
from tests.tiny_clip import write_clip
from tests.tiny_transformers import write_model

HUGE = (
    *("num_labels", "num_hidden_layers", "n_layer", "encoder_layers", "hidden_size", "vocab_size", "d_model"),
    *("max_position_embeddings", "num_experts", "num_local_experts", "image_size", "patch_size", "num_beams", "depth"),
    *("num_attention_heads", "num_channels", "type_vocab_size", "decoder_layers", "num_codebooks", "any_number_at_all"),
)
NO_COUNTS = ("10", -3, 2.5, float("nan"), float("inf"), True, "1e10")


@each("name", HUGE)
@each("number", (10**10, -(10**10), 10**400))
def test_a_number_that_no_model_has_is_refused_by_its_name_and_value(name: str, number: int) -> None:
    for place, content in ((name, {name: number}), (f"text_config.{name}", {"text_config": {name: [number]}})):
        with pytest.raises(InputError, match=rf"config\.json: {place} is .*, and (no model has more than|must be)"):
            check_numbers(content, Path("config.json"))


@each("value", NO_COUNTS)
def test_what_is_no_whole_number_is_refused_where_one_must_be(value: Any) -> None:
    with pytest.raises(InputError, match=r"num_hidden_layers is .*, and must be a whole number"):
        check_numbers({"vision_config": {"num_hidden_layers": value}}, Path("config.json"))


def test_the_configurations_that_are_published_are_accepted() -> None:
    names, known = list(CONFIG_MAPPING), 0
    for name in names[::8]:  # all of them take some seconds
        try:
            content = CONFIG_MAPPING[name]().to_dict()
        except Exception:  # some need a part of their own
            continue
        check_numbers(content, Path(name))
        known += 1
    assert known > 60
    for file in (Path(open_clip.__file__).parent / "model_configs").glob("*.json"):
        check_numbers(json.loads(file.read_text()), file)


def test_settings_from_which_nothing_is_built_may_be_of_any_size() -> None:
    content = {"rope_theta": 10**12, "seed": 2**63, "model_max_length": 10**30, "total_steps": 10**15, "eps": 1e-30}
    content["num_parameters"] = 7 * 10**9
    check_numbers(content, Path("config.json"))


def test_a_configuration_that_is_nested_deeply_is_refused() -> None:
    content: dict[str, Any] = {}
    for _ in range(500):
        content = {"in": content}
    with pytest.raises(InputError, match="nested more than 50 deep"):
        check_numbers(content, Path("config.json"))


def test_whatever_reads_a_checkpoints_configuration_refuses_its_numbers(tmp_path: Path) -> None:
    write_model(tmp_path, "bert")
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"num_labels": 10**10}))
    for read in (
        architecture_of,
        check_model,
        open_checkpoint,
        lambda folder: get_family("encoder").open_network(folder),
    ):
        with pytest.raises(InputError, match=r"config\.json: num_labels is 10000000000"):
            read(tmp_path)


@each("number", ({"num_hidden_layers": 990}, {"hidden_size": 2**24, "num_attention_heads": 1}, {"vocab_size": 2**25}))
def test_a_model_that_its_checkpoint_cannot_hold_is_refused_while_it_is_built(
    tmp_path: Path, number: dict[str, int]
) -> None:
    if not (tmp_path / "config.json").exists():
        write_model(tmp_path, "bert")
    path = tmp_path / "config.json"
    before = path.read_text()
    path.write_text(json.dumps(json.loads(before) | number))
    checkpoint = open_checkpoint(tmp_path)
    with pytest.raises(InputError, match=r"cannot build this model: it has more than [0-9]+ (modules|values)"):
        get_family("encoder").check(tmp_path, checkpoint)
    path.write_text(before)


def test_a_model_of_more_modules_than_any_has_is_not_built_without_values(monkeypatch: pytest.MonkeyPatch) -> None:
    named = {"model_type": "switch_transformers", "architectures": ["SwitchTransformersForConditionalGeneration"]}
    config = {**named, "num_experts": 8, "d_model": 8, "d_ff": 8, "d_kv": 4, "num_heads": 2, "vocab_size": 16}
    assert without_values(config) is not None
    monkeypatch.setattr(bounded, "MOST_MODULES", 100)
    assert without_values(config) is None


@each(
    "change",
    (
        ("vision_cfg", "layers", 10**9, "layers is 1000000000"),
        ("vision_cfg", "image_size", 2**14, "image_size is 16384 and patch_size"),
        ("vision_cfg", "width", 2**22, "it has more than [0-9]+ values"),
        ("text_cfg", "context_length", 10**5, "context_length is 100000"),
        ("text_cfg", "vocab_size", 2**24, "it has more than [0-9]+ values"),
    ),
)
def test_the_numbers_of_an_open_clip_configuration_are_bounded(
    tmp_path: Path, change: tuple[str, str, int, str]
) -> None:
    part, name, number, said = change
    write_clip(tmp_path)
    path = tmp_path / "open_clip_config.json"
    content = json.loads(path.read_text())
    content["model_cfg"][part][name] = number
    path.write_text(json.dumps(content))
    with pytest.raises(InputError, match=said):
        get_family("open_clip").open_network(tmp_path)


def test_the_size_that_pictures_are_resized_to_is_bounded(tmp_path: Path) -> None:
    write_model(tmp_path, "clip")
    path = tmp_path / "preprocessor_config.json"
    content = json.loads(path.read_text())
    network = get_family("clip").open_network(tmp_path)
    picture = np.zeros((8, 8, 3), dtype=np.uint8)
    assert network.pixels([picture]).shape[0] == 1
    path.write_text(json.dumps(content | {"size": {"shortest_edge": 2**24}}))
    with pytest.raises(InputError, match="pictures of 16777216 pixels a side, and no model has more than 8192"):
        get_family("clip").open_network(tmp_path).pixels([picture])


def test_budgets_of_pixels_are_no_sides_of_pictures() -> None:
    sizes = {"longest_edge": 234_881_024, "shortest_edge": 65_536}
    check_numbers({"size": sizes, "max_pixels": 234_881_024}, Path("preprocessor_config.json"))
