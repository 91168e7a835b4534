"""Difference vectors: the same methods, started from a merge, or from the models' mean where there is no base."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from merganser.checkpoints.kinds import ParameterRules
from merganser.checkpoints.mean import write_mean
from merganser.checkpoints.reading import open_checkpoint
from merganser.errors import InputError
from merganser.inputs.deltas import DeltaFile, extract
from merganser.overlays import task_model
from tests.checkpoints.adapters.small import write_adapter, write_base
from tests.laws import test_emr, test_t_switch
from tests.laws.references import Array, Given
from tests.merges import merge_checkpoints
from tests.small_models import write_models

ROUNDING = 2e-6


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return write_models(tmp_path)["base"]


@pytest.fixture
def models(base: Path) -> dict[str, Path]:
    return {f"task{t}": base.parent / f"task{t}" for t in range(3)}


def merge(method: str, base: Path | None, models: dict[str, Path], out: Path, **values: Any) -> dict[str, Tensor]:
    """Merge, and read the shared model."""
    merge_checkpoints(method, values, base, models, out, device="cpu")
    return read(out)


def read(folder: Path) -> dict[str, Tensor]:
    checkpoint = open_checkpoint(folder)
    return {name: checkpoint.read(name) for name in checkpoint.names}


def assert_models_close(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, weights in expected.items():
        torch.testing.assert_close(found[name], weights, rtol=0, atol=ROUNDING)


def test_the_differences_from_the_average_sum_to_zero(base: Path, models: dict[str, Path], tmp_path: Path) -> None:
    merge("average", base, models, tmp_path / "average")
    average = open_checkpoint(tmp_path / "average")
    for task, path in models.items():
        extract(average, open_checkpoint(path), ParameterRules(), task, tmp_path / f"{task}.safetensors")
    files = [DeltaFile(tmp_path / f"{task}.safetensors") for task in models]
    for name in files[0].kinds:
        torch.testing.assert_close(sum(file.read(name) for file in files), torch.zeros(files[0].shape(name)))
        assert all(file.read(name).any() for file in files)


@pytest.mark.parametrize(
    ("method", "formula", "values"),
    [("emr", test_emr.reference, {}), *(("t_switch", test_t_switch.reference, {"density": d}) for d in (0.5, 1.0))],
)
def test_from_the_average_each_task_is_it_plus_the_formula_of_its_difference(
    method: str,
    formula: Callable[..., list[Array]],
    values: dict[str, float],
    base: Path,
    models: dict[str, Path],
    tmp_path: Path,
) -> None:
    """EMR-diff and T-Switch-diff of DTS's appendix D.5.

    The differences sum to 0 but for what rounding the average leaves, which is what elects EMR's signs.
    """
    average = merge("average", base, models, tmp_path / "average")
    layers, tasks = [], tuple(models)
    for name, weights in average.items():
        if name != "steps":
            deltas = torch.stack([read(path)[name].float() - weights.float() for path in models.values()])
            layers.append(Given(name, "vector", tasks, deltas.double().numpy(), (1.0,) * len(tasks)))
    expected = dict(zip((layer.name for layer in layers), formula(layers, **values), strict=True))
    merge(method, base, models, tmp_path / "out", merged="average", **values)
    for number, task in enumerate(models):
        own = dict(task_model(tmp_path / "out", task))
        for name, parts in expected.items():
            found = own[name].double().numpy() - average[name].double().numpy()
            np.testing.assert_allclose(found, parts[number], rtol=0, atol=ROUNDING)
        assert any(parts[number].any() for parts in expected.values())


@pytest.mark.parametrize("scaling", [0.3, 1.0, -2.0])
def test_task_arithmetic_on_differences_from_the_average_gives_the_average(
    scaling: float, base: Path, models: dict[str, Path], tmp_path: Path
) -> None:
    found = merge("task_arithmetic", base, models, tmp_path / "out", merged="average", scaling=scaling)
    assert_models_close(found, merge("average", base, models, tmp_path / "average"))


@pytest.mark.parametrize("merged", ["average", "ties", "tsv_m"])
def test_whole_spectra_of_differences_give_each_task_back(
    merged: str, base: Path, models: dict[str, Path], tmp_path: Path
) -> None:
    shared = merge("svd", base, models, tmp_path / "out", merged=merged, rank_fraction=1.0)
    assert_models_close(shared, merge(merged, base, models, tmp_path / "merged"))
    for task, path in models.items():
        own = dict(task_model(tmp_path / "out", task))
        assert_models_close({name: own[name] for name in read(path)}, read(path))


def test_differences_need_no_base(base: Path, models: dict[str, Path], tmp_path: Path) -> None:
    """The average of models is the same from any base, and so is what starts from it."""
    of_base = merge("svd", base, models, tmp_path / "of_base", merged="average", rank_fraction=0.5)
    without = merge("svd", None, models, tmp_path / "without", merged="average", rank_fraction=0.5)
    del of_base["steps"]  # frozen, and the base's only
    assert_models_close(without, of_base)
    for task in models:
        own, other = dict(task_model(tmp_path / "without", task)), dict(task_model(tmp_path / "of_base", task))
        assert_models_close(own, {name: other[name] for name in own})


@pytest.mark.parametrize(
    ("method", "values"), [("ties", {}), ("tsv_m", {}), ("dts_t", {"rank_fraction": 0.5}), ("individual", {})]
)
def test_without_a_base_the_models_mean_is_the_base(
    method: str, values: dict[str, Any], models: dict[str, Path], tmp_path: Path
) -> None:
    (tmp_path / "mean").mkdir()
    write_mean(models, tmp_path / "mean")
    merge(method, None, models, tmp_path / "without", **values)
    merge(method, tmp_path / "mean", models, tmp_path / "given", **values)
    for file in sorted((tmp_path / "given").glob("*.safetensors")):
        assert (tmp_path / "without" / file.name).read_bytes() == file.read_bytes()


def test_what_reads_differences_starts_from_the_average(base: Path, models: dict[str, Path], tmp_path: Path) -> None:
    found = merge("dts_d", base, models, tmp_path / "out")
    assert_models_close(found, merge("average", base, models, tmp_path / "average"))
    merge("dts_d", base, models, tmp_path / "said", merged="average")
    overlays = [(tmp_path / out / "overlays.safetensors").read_bytes() for out in ("out", "said")]
    assert overlays[0] == overlays[1]


def test_an_adapters_difference_is_that_of_the_model_it_makes(tmp_path: Path) -> None:
    write_base(tmp_path / "base")
    models = {f"task{t}": tmp_path / f"lora{t}" for t in range(2)}
    whole = {}
    for seed, (task, path) in enumerate(models.items()):
        write_adapter(path, tmp_path / "base", seed=seed)
        whole[task] = path.with_name(f"{path.name}-merged")
    values = {"merged": "average", "rank_fraction": 1.0}
    found = merge("svd", tmp_path / "base", models, tmp_path / "out", **values)
    assert_models_close(found, merge("svd", tmp_path / "base", whole, tmp_path / "whole", **values))
    for task, path in whole.items():
        assert_models_close(dict(task_model(tmp_path / "out", task)), read(path))


@pytest.mark.parametrize(
    ("merged", "said"),
    [("svd", "keeps a part per task"), ("dts_d", "starts from a merge itself"), ("avrage", 'did you mean "average"')],
)
def test_what_gives_no_one_model_is_refused_as_a_start(
    merged: str, said: str, base: Path, models: dict[str, Path], tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=said):
        merge("ties", base, models, tmp_path / "out", merged=merged)
    assert not (tmp_path / "out").exists()
