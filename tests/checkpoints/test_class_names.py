"""Heads whose rows are other classes than the base's are refused, wherever a configuration names the classes."""

import json
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from safetensors.torch import load_file, save_file
from timm.models import save_for_hf

from merganser.checkpoints.configurations import class_labels
from merganser.checkpoints.kinds import ParameterRules
from merganser.errors import InputError
from tests.merges import merge_checkpoints

ANIMALS, MOVED = ["cat", "dog", "fox"], ["dog", "cat", "fox"]


@pytest.mark.parametrize("number", ["\u00b2", "9" * 5000])
@pytest.mark.parametrize("key", ["id2label", "label_descriptions"])
def test_classes_under_no_numbers_are_no_list(tmp_path: Path, key: str, number: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps({key: {number: "cat"}}))
    assert class_labels(tmp_path) == (None if key == "id2label" else {"": [number]})


def by_number(names: list[str]) -> dict[str, str]:
    return {str(number): name for number, name in enumerate(names)}


def by_name(names: list[str]) -> dict[str, int]:
    return {name: number for number, name in enumerate(names)}


CONFIGURATIONS: dict[str, Any] = {
    "transformers": lambda names: {"id2label": by_number(names)},
    "transformers, the other way round": lambda names: {"label2id": by_name(names)},
    "transformers, a part of the model": lambda names: {"text_config": {"id2label": by_number(names)}},
    "transformers, several heads": lambda names: {"id2label": {"one": by_number(names), "two": {"0": "a"}}},
    "timm": lambda names: {"label_names": names, "num_classes": 3},
    "timm, by number": lambda names: {"label_names": by_number(names)},
    "timm, nested": lambda names: {"architecture": "vit", "pretrained_cfg": {"label_names": names}},
    "timm, of old": lambda names: {"architecture": "vit", "labels": names},
    "timm, descriptions": lambda names: {"label_descriptions": dict.fromkeys(names, "an animal")},
    "timm, numbers described": lambda names: {
        "label_names": ["0", "1", "2"],
        "pretrained_cfg": {"label_descriptions": by_number(names)},
    },
    "torchvision": lambda names: {"class_to_idx": by_name(names)},
    "ultralytics": lambda names: {"names": by_number(names)},
    "another": lambda names: {"classifier": {"classes": names}},
}


def saved(path: Path, shift: float, config: Any, head: str = "head") -> Path:
    path.mkdir()
    state = {"blocks.0.weight": torch.ones(3, 3), f"{head}.weight": torch.ones(3, 5), f"{head}.bias": torch.ones(3)}
    save_file({name: value + shift for name, value in state.items()}, path / "model.safetensors", {"format": "pt"})
    (path / "config.json").write_text(json.dumps(config))
    return path


@pytest.mark.parametrize("form", CONFIGURATIONS)
def test_classes_in_another_order_are_refused_wherever_they_are_named(form: str, tmp_path: Path) -> None:
    base = saved(tmp_path / "base", 0, CONFIGURATIONS[form](ANIMALS))
    alike = saved(tmp_path / "alike", 1, CONFIGURATIONS[form](ANIMALS))
    moved = saved(tmp_path / "moved", 2, CONFIGURATIONS[form](MOVED))
    merge_checkpoints("average", {}, base, {"alike": alike}, tmp_path / "out", device="cpu")
    with pytest.raises(InputError, match=r"moved: row 0 of head\.bias is the class 'dog', that of the base 'cat'"):
        merge_checkpoints("average", {}, base, {"alike": alike, "moved": moved}, tmp_path / "out2", device="cpu")
    rules = ParameterRules(heads=["head.*"], flags=True)
    merge_checkpoints("average", {}, base, {"moved": moved}, tmp_path / "out3", device="cpu", rules=rules)
    assert load_file(tmp_path / "out3/model.safetensors")["head.bias"].tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    ("head", "more"),
    [
        *((name, {}) for name in ("fc", "head.fc.fc2", "head_dist", "last_linear", "classif", "heads.0", "output")),
        ("blocks.9.out", {"classifier": "blocks.9.out"}),
        ("blocks.9.out", {"pretrained_cfg": {"classifier": ["blocks.8.out", "blocks.9.out"]}}),
    ],
)
def test_the_head_is_found_by_its_name_or_by_what_timm_calls_it(head: str, more: Any, tmp_path: Path) -> None:
    paths = [
        saved(tmp_path / name, 0, {"label_names": names, **more}, head)
        for name, names in (("base", ANIMALS), ("moved", MOVED))
    ]
    with pytest.raises(InputError, match="moved: row 0 of "):
        merge_checkpoints("average", {}, paths[0], {"moved": paths[1]}, tmp_path / "out", device="cpu")


def test_classes_that_are_only_numbered_say_nothing(tmp_path: Path) -> None:
    for config in ({"id2label": {"0": "LABEL_0", "1": "LABEL_1"}}, {"label2id": {"LABEL_0": 0}}, {"labels": 3}, {}):
        (tmp_path / "config.json").write_text(json.dumps(config))
        assert class_labels(tmp_path) is None


def test_what_timm_saves_is_read(tmp_path: Path) -> None:
    paths = []
    for number, names in enumerate((ANIMALS, MOVED)):
        paths.append(tmp_path / str(number))
        torch.manual_seed(number)
        sizes = {"img_size": 8, "patch_size": 8, "embed_dim": 8, "depth": 1, "num_heads": 1, "num_classes": 3}
        model = timm.create_model("vit_tiny_patch16_224", **sizes)
        save_for_hf(model, paths[-1], model_config={"label_names": names}, safe_serialization=True)
    assert class_labels(paths[0]) == {"": ANIMALS}
    rules = ParameterRules(flags=True)
    with pytest.raises(InputError, match=r"t: row 0 of head\.bias is the class 'dog'.*--except 'head\.\*'"):
        merge_checkpoints("average", {}, paths[0], {"t": paths[1]}, tmp_path / "out", device="cpu", rules=rules)
