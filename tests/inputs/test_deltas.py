import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from merganser.checkpoints.kinds import ParameterRules, parameter_kind
from merganser.checkpoints.reading import open_checkpoint
from merganser.checkpoints.tensors import DTYPES
from merganser.checkpoints.writing import save_tensors
from merganser.errors import InputError
from merganser.inputs.deltas import check_pair, extract, open_deltas
from merganser.inputs.layers import LayerDeltas, dense_layer
from tests.small_models import random_state, write_models

RULES = ParameterRules()


def extract_all(models: dict[str, Path], out: Path, rules: ParameterRules = RULES) -> None:
    base = open_checkpoint(models["base"])
    for task in models:
        if task != "base":
            extract(base, open_checkpoint(models[task]), rules, task, out / f"{task}.safetensors")


def test_a_delta_is_fine_tuned_minus_base_in_float32(tmp_path: Path) -> None:
    models = write_models(tmp_path / "models", dtype=torch.bfloat16)
    (tmp_path / "deltas").mkdir()
    extract_all(models, tmp_path / "deltas")
    base, tuned = (open_checkpoint(models[name]) for name in ("base", "task1"))
    layer = open_deltas(tmp_path / "deltas", ["task2", "task1"]).layer("proj")
    assert layer.tasks == ("task1", "task2")
    assert torch.equal(layer.deltas[0], tuned.read("proj").float() - base.read("proj").float())


def test_what_is_a_matrix_is_decided_once_at_extraction(tmp_path: Path) -> None:
    models = write_models(tmp_path / "models")
    (tmp_path / "deltas").mkdir()
    extract_all(models, tmp_path / "deltas")
    deltas = open_deltas(tmp_path / "deltas", ["task0", "task1"])
    assert {name for name, kind in deltas.kinds.items() if kind == "vector"} == {
        "blocks.0.attn.in_proj_bias",
        "blocks.0.ln_1.weight",
        "logit_scale",
        "positional_embedding",
    }
    assert "steps" not in deltas.kinds
    assert deltas.layer("conv1.weight").deltas.shape == (2, 8, 12)
    assert [layer.name for layer in deltas] == [layer.name for layer in deltas]


def test_any_2d_counts_embeddings_as_matrices_and_convolutions_as_vectors() -> None:
    rules = ParameterRules(matrices="any_2d")
    assert parameter_kind("positional_embedding", (5, 8), rules) == "matrix"
    assert parameter_kind("conv1.weight", (8, 3, 2, 2), rules) == "vector"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: s.pop("proj"), "task0: the parameter proj is missing"),
        (lambda s: s.update(proj=torch.zeros(8, 7)), r"task0: proj has shape \[8, 7\], in the base it has \[8, 6\]"),
        (lambda s: s.update(proj=torch.full((8, 6), float("nan"))), "task0: proj holds NaN or infinity"),
        (lambda s: s.update(proj=torch.full((8, 6), float("inf"))), "task0: proj holds NaN or infinity"),
        (lambda s: s.update(extra=torch.zeros(2)), "task0: the parameter extra is not in the base"),
        (lambda s: [s.pop(name) for name in list(s)] and s.update(other=torch.zeros(1)), "another architecture"),
    ],
)
def test_models_that_do_not_belong_together_are_refused_by_name(tmp_path: Path, change: object, message: str) -> None:
    save_tensors(tmp_path / "base", random_state(0))
    tuned = random_state(1)
    change(tuned)  # type: ignore[operator]
    save_tensors(tmp_path / "task0", tuned)
    base, task0 = (open_checkpoint(tmp_path / name) for name in ("base", "task0"))
    with pytest.raises(InputError, match=message):
        extract(base, task0, RULES, "task0", tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("base", "tuned", "who"), [("I8", "I8", "base"), ("F32", "I8", "task0"), ("U8", "F32", "base")]
)
def test_quantised_weights_are_refused_by_name(tmp_path: Path, base: str, tuned: str, who: str) -> None:
    for name, dtype in (("base", base), ("task0", tuned)):
        weights = {f"{i}.weight": torch.ones(4, 3).to(DTYPES[dtype]) for i in range(2)}
        save_tensors(
            tmp_path / name, weights | {"position_ids": torch.ones(1, 4, dtype=torch.int64), "norm": torch.ones(4)}
        )
    models = [open_checkpoint(tmp_path / name) for name in ("base", "task0")]
    said = rf"^{who}: the parameter 0\.weight \(and 1 more\) is quantised, stored as [IU]8; take the model it was made"
    with pytest.raises(InputError, match=said):
        check_pair(*models, RULES, "task0")
    assert check_pair(*models, ParameterRules(merged=["norm"]), "task0") == {"norm": "vector"}


def test_a_file_of_eight_bit_floats_is_refused_by_name(tmp_path: Path) -> None:
    save_file({"0.weight": torch.ones(4, 3).to(torch.float8_e4m3fn)}, tmp_path / "model.safetensors")
    with pytest.raises(InputError, match=r"0\.weight is quantised, stored as F8_E4M3; take the model it was made from"):
        open_checkpoint(tmp_path)


def test_only_the_declared_parameters_are_merged(tmp_path: Path) -> None:
    models = write_models(tmp_path / "models")
    (tmp_path / "deltas").mkdir()
    extract_all(models, tmp_path / "deltas", ParameterRules(merged=["blocks.*"]))
    assert all(name.startswith("blocks.") for name in open_deltas(tmp_path / "deltas", ["task0"]).names)


def test_patterns_that_match_nothing_are_refused(tmp_path: Path) -> None:
    save_tensors(tmp_path / "base", random_state(0))
    base = open_checkpoint(tmp_path / "base")
    with pytest.raises(InputError, match=r"parameters\.merged"):
        extract(base, base, ParameterRules(merged=["visual.*"]), "task0", tmp_path / "out")


def test_one_task_alone_has_the_layers_of_all_with_zeros_where_only_others_changed_them(tmp_path: Path) -> None:
    weights, kinds = torch.ones(2, 3), {"a": "matrix", "b": "vector"}
    for task, name in (("one", "a"), ("two", "b")):
        index = {"kinds": kinds, "norms": {"a": 1.0, "b": 1.0}, "shapes": {"a": [2, 3], "b": [2, 3]}}
        save_tensors(tmp_path / f"{task}.safetensors", {name: weights}, json.dumps(index))
    whole = open_deltas(tmp_path, ["one", "two"])
    for number, task in enumerate(whole.tasks):
        alone = whole.alone(task)
        assert (alone.tasks, alone.names, alone.shapes) == ((task,), whole.names, whole.shapes)
        for name in whole.names:
            expected, found = (dense_layer(source.layer(name)) for source in (whole, alone))
            assert isinstance(expected, LayerDeltas)
            assert isinstance(found, LayerDeltas)
            assert torch.equal(found.deltas[0], expected.deltas[number])
