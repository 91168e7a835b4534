from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from merganser.checkpoints.kinds import ParameterRules
from merganser.checkpoints.writing import save_tensors
from merganser.measures import defined
from merganser.measures.tasks import measure_tasks
from tests.checkpoints.adapters.small import write_adapter, write_base
from tests.measures.models import Prepared, prepare
from tests.small_models import random_state, write_models

VECTORS = {"blocks.0.attn.in_proj_bias", "blocks.0.ln_1.weight", "logit_scale", "positional_embedding"}


def prepared_models(folder: Path, tasks: int) -> Prepared:
    models = write_models(folder / "models", tasks)
    return prepare(models.pop("base"), models, folder / "deltas")


def measured(prepared: Prepared) -> dict[str, Any]:
    return measure_tasks(prepared.deltas, prepared.factors)


def test_every_parameter_is_measured_as_what_it_is(tmp_path: Path) -> None:
    prepared = prepared_models(tmp_path, 3)
    found = measured(prepared)
    assert found["tasks"] == ["task0", "task1", "task2"]
    assert set(found["layers"]) == set(prepared.deltas.names)
    for name, layer in found["layers"].items():
        assert layer["kind"] == ("vector" if name in VECTORS else "matrix")
        norms = prepared.deltas.layer(name).deltas.reshape(3, -1).double().norm(dim=1).tolist()
        assert layer["norms"] == pytest.approx(norms)
        assert ("joint" in layer["sign_agreement"]) == (layer["kind"] == "matrix")
        assert 0.5 <= layer["sign_agreement"]["weights"] <= 1


def test_the_numbers_are_the_same_in_any_number_of_threads(tmp_path: Path) -> None:
    prepared = prepared_models(tmp_path, 3)
    found = measure_tasks(prepared.deltas, prepared.factors, threads=3)
    assert defined(found) == defined(measured(prepared))


def test_the_numbers_of_a_matrix_are_those_of_numpy(tmp_path: Path) -> None:
    prepared = prepared_models(tmp_path, 3)
    found = measured(prepared)["layers"]["blocks.0.attn.in_proj_weight"]
    D = prepared.deltas.layer("blocks.0.attn.in_proj_weight").deltas.double().numpy()
    spectra = np.linalg.svd(D, compute_uv=False)
    centred = np.linalg.svd(D - D.mean(0), compute_uv=False)
    assert found["rank"] == 1  # 8 % of 8, and at least one
    shares = spectra / spectra.sum(1, keepdims=True)
    assert found["effective_rank"] == pytest.approx(np.exp(-(shares * np.log(shares)).sum(1)), rel=1e-5)
    for which, values in {"own": spectra, "centred": centred}.items():
        lost = np.sqrt((values[:, 1:] ** 2).sum(1) / (values**2).sum(1))
        assert found["reconstruction_error"][which] == pytest.approx(lost, rel=1e-5)
    vh = [np.linalg.svd(each)[2][0] for each in D]
    assert found["row_space_interference"]["own"][0][2] == pytest.approx(abs(vh[0] @ vh[2]), rel=1e-4)
    assert found["interference"]["rank"] == 8 // 3
    pair = D[[0, 2]]
    shares = np.abs(np.sign(pair).sum(0)) / 2  # 1 where both agree, 0 where they do not
    assert found["sign_agreement"]["pairs"][0][2] == pytest.approx((1 + shares.mean()) / 2)
    (u0, _, v0), (u2, _, v2) = (np.linalg.svd(each) for each in pair)
    crossed = [
        np.abs((one[:, :2].T @ two[:, :2]) * s[:2] @ (right_two[:2] @ right_one[:2].T)).sum()
        for one, two, s, right_one, right_two in ((u0, u2, spectra[2], v0, v2), (u2, u0, spectra[0], v2, v0))
    ]
    assert found["interference"]["pairs"][2][0] == pytest.approx(sum(crossed), rel=1e-4)


def test_a_matrix_smaller_than_the_number_of_tasks_has_no_interference(tmp_path: Path) -> None:
    assert measured(prepared_models(tmp_path, 3))["layers"]["blocks.0.row.weight"]["interference"] is None


def test_one_task_interferes_with_nothing_and_has_nothing_to_be_centred_by(tmp_path: Path) -> None:
    found = measured(prepared_models(tmp_path, 1))
    assert found["cosines"] == [[1.0]]
    layer = found["layers"]["proj"]
    assert layer["interference"]["own"] == pytest.approx(0, abs=1e-5)
    assert layer["sign_agreement"]["weights"] == 1
    assert defined(layer["reconstruction_error"]["centred"]) == [None]


def test_identical_tasks_agree_everywhere_and_leave_nothing_when_centred(tmp_path: Path) -> None:
    models = write_models(tmp_path / "models", 1)
    same = dict.fromkeys(("one", "three", "two"), models["task0"])
    found = measured(prepare(models["base"], same, tmp_path / "deltas"))
    assert np.array(found["cosines"]) == pytest.approx(1)
    for layer in found["layers"].values():
        assert layer["sign_agreement"]["weights"] == 1
        if layer["kind"] == "matrix":
            assert defined(layer["reconstruction_error"]["centred"]) == [None] * 3


def test_a_model_that_was_not_trained_has_undefined_shares_and_stops_nothing(tmp_path: Path) -> None:
    models = write_models(tmp_path / "models", 2)
    (tmp_path / "frozen").mkdir()
    save_tensors(tmp_path / "frozen/model.safetensors", random_state(0))
    models["task1"] = tmp_path / "frozen"
    found = defined(measured(prepare(models.pop("base"), models, tmp_path / "deltas")))
    assert found["cosines"] == [[1.0, None], [None, None]]
    layer = found["layers"]["proj"]
    assert layer["effective_rank"][1] == 0
    assert layer["energy_share"][1] is None
    assert layer["row_space_interference"]["own"][0][1] is None
    assert layer["interference"]["own"] == pytest.approx(0, abs=1e-5)
    assert layer["sign_agreement"]["weights"] == 1


def test_adapters_measure_as_the_models_they_stand_for(tmp_path: Path) -> None:
    write_base(tmp_path / "base")
    write_adapter(tmp_path / "one", tmp_path / "base", 1, target_modules=["attn", "fc"])
    write_adapter(tmp_path / "two", tmp_path / "base", 2, r=3, target_modules=["attn", "proj"])
    rules = ParameterRules(merged=["attn.in_proj_weight", "fc.weight", "proj.weight"])
    kinds = {"low": "", "dense": "-merged"}
    found = {}
    for kind, suffix in kinds.items():
        models = {task: tmp_path / f"{task}{suffix}" for task in ("one", "two")}
        found[kind] = defined(measured(prepare(tmp_path / "base", models, tmp_path / kind, rules)))
    for name in rules.merged:
        low, dense = (found[kind]["layers"][name] for kind in kinds)
        assert np.array(low["norms"]) == pytest.approx(np.array(dense["norms"]), abs=1e-5)
        assert low["effective_rank"] == pytest.approx(dense["effective_rank"], rel=1e-3)
        assert low["interference"]["own"] == pytest.approx(dense["interference"]["own"], rel=1e-3, abs=1e-4)
    low, dense = (found[kind]["layers"]["attn.in_proj_weight"] for kind in kinds)
    for key in ("joint", "joint_pruned"):
        assert low["sign_agreement"][key] == pytest.approx(dense["sign_agreement"][key], abs=0.01)
    assert torch.tensor(low["row_space_interference"]["centred"]).allclose(
        torch.tensor(dense["row_space_interference"]["centred"]), rtol=1e-3
    )
