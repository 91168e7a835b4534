"""Heads: read from each task's own checkpoint, never merged."""

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor

from merganser.checkpoints.adapters.files import open_model
from merganser.checkpoints.kinds import ParameterRules
from merganser.checkpoints.reading import open_checkpoint
from merganser.checkpoints.writing import save_tensors
from merganser.errors import InputError
from merganser.inputs.deltas import check_pair
from merganser.inputs.heads import Head, read_head, write_head

HEADS = ["classifier.*"]
BASE = {"layer.weight": torch.ones(3, 3), "classifier.weight": torch.zeros(1, 3)}
TUNED = {"layer.weight": torch.eye(3), "classifier.weight": torch.ones(2, 3), "classifier.bias": torch.ones(2)}
NAMED = {"id2label": {"1": "yes", "0": "no"}}


def save(folder: Path, tensors: dict[str, Tensor], config: object = None) -> Path:
    folder.mkdir(parents=True)
    save_tensors(folder / "model.safetensors", tensors)
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config))
    return folder


def head_of(folder: Path, patterns: list[str]) -> Head:
    return head_in(folder, patterns, folder / "head.safetensors")


def head_in(model: Path, patterns: list[str], file: Path) -> Head:
    write_head(open_model(model), patterns, model, "task", file)
    return read_head(file)


def test_a_models_own_head_takes_the_place_of_the_bases(tmp_path: Path) -> None:
    head = head_of(save(tmp_path / "task", TUNED, NAMED), HEADS)
    assert head.classes == ["no", "yes"]
    found = dict(head.put_on(BASE.items()))
    assert sorted(found) == ["classifier.bias", "classifier.weight", "layer.weight"]
    assert torch.equal(found["layer.weight"], BASE["layer.weight"])
    assert torch.equal(found["classifier.weight"], TUNED["classifier.weight"])


def test_a_model_in_one_file_has_the_class_names_beside_it(tmp_path: Path) -> None:
    file = save(tmp_path / "task", TUNED, NAMED) / "model.safetensors"
    assert head_in(file, HEADS, tmp_path / "head.safetensors").classes == ["no", "yes"]


def test_without_patterns_a_model_is_left_as_it_is(tmp_path: Path) -> None:
    head = head_of(save(tmp_path / "task", TUNED, NAMED), [])
    assert dict(head.put_on(BASE.items())) == BASE
    assert head.classes == []


def test_an_adapter_gives_the_head_that_it_holds_whole(tmp_path: Path) -> None:
    folder = tmp_path / "task"
    folder.mkdir()
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": 1, "lora_alpha": 1}))
    tensors = {"layer.lora_A.weight": torch.ones(1, 3), "layer.lora_B.weight": torch.ones(3, 1)}
    score = {"score.weight": torch.full((2, 3), 5.0)}
    saved = {f"base_model.model.{name}": value for name, value in (tensors | score).items()}
    save_tensors(folder / "adapter_model.safetensors", saved)
    head = head_of(folder, ["score.*"])
    assert torch.equal(head.tensors["score.weight"], score["score.weight"])
    base = open_checkpoint(save(tmp_path / "base", BASE | {"score.weight": torch.zeros(7, 3)}))
    rules = ParameterRules(heads=["score.*", *HEADS])
    assert check_pair(base, open_model(folder), rules, "task") == {"layer.weight": "matrix"}
    with pytest.raises(InputError, match=r"score\.weight is for shape \[2, 3\], in the base"):
        check_pair(base, open_model(folder), ParameterRules(heads=HEADS), "task")


def test_heads_of_other_sizes_and_names_are_not_compared_with_the_base(tmp_path: Path) -> None:
    base = open_checkpoint(save(tmp_path / "base", BASE))
    tuned = open_model(save(tmp_path / "task", TUNED))
    assert check_pair(base, tuned, ParameterRules(heads=HEADS), "task") == {"layer.weight": "matrix"}
    with pytest.raises(InputError, match=r"classifier\.weight has shape \[2, 3\]"):
        check_pair(base, tuned, ParameterRules(), "task")


def test_patterns_that_match_nothing_are_refused_with_names_that_there_are(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no parameter matches base\.heads \(clasifier\.\*\); its"):
        head_of(save(tmp_path / "task", TUNED), ["clasifier.*"])


def test_outputs_without_names_are_numbered_as_the_rows_of_the_last_map(tmp_path: Path) -> None:
    two = {"classifier.dense.weight": torch.ones(3, 3), "classifier.out_proj.weight": torch.ones(4, 3)}
    assert head_of(save(tmp_path / "two", two, {}), HEADS).classes == [f"LABEL_{number}" for number in range(4)]
    assert head_of(save(tmp_path / "one", TUNED), HEADS).classes == ["LABEL_0", "LABEL_1"]
    unclear = two | {"classifier.other.weight": torch.ones(5, 3)}
    assert head_of(save(tmp_path / "unclear", unclear), HEADS).classes == []


@pytest.mark.parametrize(("count", "classes"), [(2, ["no", "yes"]), (3, ["LABEL_0", "LABEL_1"])])
def test_names_are_timms_unless_they_are_of_another_head(count: int, classes: list[str], tmp_path: Path) -> None:
    said = {"num_classes": count, "pretrained_cfg": {"label_names": ["no", "yes"]}}
    assert head_of(save(tmp_path / "task", TUNED, said), HEADS).classes == classes
