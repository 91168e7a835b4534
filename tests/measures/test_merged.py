from pathlib import Path

import numpy as np
import pytest
import torch

from merganser.measures import defined
from merganser.measures.alignment import EPS
from merganser.measures.merged import measure_merge
from tests.measures.models import Prepared, merged, prepare
from tests.small_models import write_models

LEAST = (1 - EPS**2) ** 0.5  # SAR of a matrix with itself


def prepared_models(folder: Path, tasks: int, dtype: torch.dtype = torch.float32) -> Prepared:
    models = write_models(folder / "models", tasks, dtype)
    return prepare(models.pop("base"), models, folder / "deltas")


def test_a_merge_of_one_task_is_aligned_with_it(tmp_path: Path) -> None:
    prepared = prepared_models(tmp_path, 1)
    folder = merged(prepared, "task_arithmetic", tmp_path / "merged", scaling=1.0)
    found = measure_merge(folder, prepared.base, prepared.deltas)
    assert not found["parts"]
    assert LEAST <= found["sar"][0] <= 1
    for layer in found["layers"].values():
        assert layer["cosines"] == pytest.approx([1])
        assert LEAST <= layer.get("sar", [1])[0] <= 1 + 1e-9


def test_alignment_with_a_merge_is_that_with_its_delta(tmp_path: Path) -> None:
    prepared = prepared_models(tmp_path, 3)
    folder = merged(prepared, "average", tmp_path / "merged")
    whole = measure_merge(folder, prepared.base, prepared.deltas)
    assert whole == measure_merge(folder, prepared.base, prepared.deltas, threads=3)
    found = whole["layers"]["proj"]
    D = prepared.deltas.layer("proj").deltas.double().numpy()
    u, s, _ = np.linalg.svd(D.mean(0))
    k = next(k for k in range(len(s) + 1) if (s[k:] ** 2).sum() <= EPS**2 * (s**2).sum())
    assert found["rank"] == k
    expected = [np.linalg.norm(u[:, :k].T @ each) / np.linalg.norm(each) for each in D]
    assert found["sar"] == pytest.approx(expected, rel=1e-5)
    cosines = [(each * D.mean(0)).sum() / np.linalg.norm(each) / np.linalg.norm(D.mean(0)) for each in D]
    assert found["cosines"] == pytest.approx(cosines, rel=1e-5)


def test_the_base_holds_nothing_of_any_task(tmp_path: Path) -> None:
    prepared = prepared_models(tmp_path, 2)
    found = defined(measure_merge(merged(prepared, "base", tmp_path / "merged"), prepared.base, prepared.deltas))
    assert found["sar"] == [0, 0]
    assert found["layers"]["proj"] == {
        "norm": 0.0,
        "cosines": [None, None],
        "rank": 0,
        "effective_rank": 0.0,
        "sar": [0.0, 0.0],
    }


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_individual_models_have_no_error(dtype: torch.dtype, tmp_path: Path) -> None:
    prepared = prepared_models(tmp_path, 2, dtype)
    found = measure_merge(merged(prepared, "individual", tmp_path / "merged"), prepared.base, prepared.deltas)
    assert found["parts"]
    assert found["error"] == pytest.approx([0, 0], abs=1e-5)
    assert set(found["layers"]) == set(prepared.deltas.names)


def test_a_model_equal_to_the_base_has_no_relative_error(tmp_path: Path) -> None:
    models = write_models(tmp_path / "models", 1)
    prepared = prepare(models["base"], {"same": models["base"], "task0": models["task0"]}, tmp_path / "deltas")
    folder = merged(prepared, "free", tmp_path / "merged")  # which gives every task the others' deltas
    found = defined(measure_merge(folder, prepared.base, prepared.deltas))
    errors = [found["error"], *(layer["error"] for layer in found["layers"].values())]
    assert [error[0] for error in errors] == [None] * len(errors)
    assert all(error[1] is not None and np.isfinite(error[1]) for error in errors)


def test_the_error_of_a_truncation_is_what_it_drops(tmp_path: Path) -> None:
    prepared = prepared_models(tmp_path, 2)
    folder = merged(prepared, "svd", tmp_path / "merged", rank_fraction=0.5)
    found = measure_merge(folder, prepared.base, prepared.deltas)
    lost, whole = np.zeros(2), np.zeros(2)
    for layer in prepared.deltas:
        D = layer.deltas.double().numpy()
        whole += (D**2).reshape(2, -1).sum(1)
        if layer.kind == "matrix":
            s = np.linalg.svd(D, compute_uv=False)
            dropped = (s[:, max(1, s.shape[1] // 2) :] ** 2).sum(1)  # of a single row nothing
            lost += dropped
            assert found["layers"][layer.name]["error"] == pytest.approx(
                np.sqrt(dropped / (s**2).sum(1)), rel=1e-3, abs=1e-4
            )
        else:
            assert found["layers"][layer.name]["error"] == pytest.approx([0, 0], abs=1e-4)
    assert found["error"] == pytest.approx(np.sqrt(lost / whole), rel=1e-3)
