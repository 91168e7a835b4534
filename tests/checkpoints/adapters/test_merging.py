"""Adapters merge as the models do that PEFT merges them to, from the source's folder to the merged checkpoint."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from merganser import registry
from merganser.checkpoints.kinds import ParameterRules
from merganser.checkpoints.reading import open_checkpoint
from merganser.inputs.deltas import Deltas, open_deltas
from merganser.inputs.factors import FactorSettings, FactorSource, decompose, open_factors
from merganser.inputs.layers import LayerDeltas, LayerFactors, LayerLowRank
from merganser.linalg.svd import rebuilt
from merganser.overlays import write_task_model
from tests.checkpoints.adapters.small import extracted, rewritten, write_adapter, write_base
from tests.laws.layers import with_few_steps
from tests.merges import merge_checkpoints

ONE: dict[str, Any] = {"target_modules": ["conv1", "attn", "fc"], "rank_pattern": {"fc": 4}, "bias": "lora_only"}
TWO: dict[str, Any] = {"r": 3, "target_modules": ["attn", "fc", "proj"], "modules_to_save": ["head"]}
TOUCHED = ["conv1.weight", "attn.*weight", "attn.out_proj.bias", "fc.*", "proj.weight", "head.*"]
VALUES: dict[str, dict[str, Any]] = {  # at their defaults the others keep something of matrices this small
    "cart": {"rank_fraction": 0.2},
    "dts_t": {"rank_fraction": 0.2},
    "localize_stitch": {"density": 0.4},
    "svd": {"rank_fraction": 0.2},
    "task_arithmetic": {"scaling": {"one": 0.7, "two": -0.2}},
    "ties": {"density": 0.4, "coefficients": "inverse_norm"},
}
METHODS = [name for name in registry.names() if registry.get(name).needs in (["deltas"], ["svd"])]


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a base, two adapters of it, and beside them the models that they stand for."""
    folder = tmp_path_factory.mktemp("hub")
    write_base(folder / "base")
    write_adapter(folder / "one", folder / "base", seed=1, **ONE)
    write_adapter(folder / "two", folder / "base", seed=2, **TWO)
    return folder


def parameters(path: Path) -> dict[str, Tensor]:
    checkpoint = open_checkpoint(path)
    return {name: checkpoint.read(name).double() for name in checkpoint.names}


def merged_models(
    method: str, values: dict[str, Any], hub: Path, models: dict[str, str], out: Path
) -> dict[str, Tensor]:
    """Merge; return the merged model's parameters, and those of each task's own."""
    folders = {task: hub / name for task, name in models.items()}
    rules = ParameterRules(merged=TOUCHED)
    merge_checkpoints(method, values, hub / "base", folders, out, rules=rules, device="cpu")
    found = parameters(out)
    for task in models if (out / "overlays.safetensors").is_file() else ():
        write_task_model(out, task, out / f"{task}.safetensors")
        found |= {f"{task} {name}": value for name, value in parameters(out / f"{task}.safetensors").items()}
    return found


@pytest.mark.parametrize("method", METHODS)
def test_a_merge_of_adapters_is_the_merge_of_the_models_they_stand_for(method: str, hub: Path, tmp_path: Path) -> None:
    values = with_few_steps(registry.get(method), VALUES.get(method, {}))
    low_rank = merged_models(method, values, hub, {"one": "one", "two": "two"}, tmp_path / "low_rank")
    dense = merged_models(method, values, hub, {"one": "one-merged", "two": "two-merged"}, tmp_path / "dense")
    assert low_rank.keys() == dense.keys()
    base = parameters(hub / "base")
    wanted = torch.cat([(value - base[name.split()[-1]]).flatten() for name, value in dense.items()])
    found = torch.cat([(value - base[name.split()[-1]]).flatten() for name, value in low_rank.items()])
    assert (found - wanted).norm() <= 1e-5 * wanted.norm()


def test_a_tasks_own_model_is_the_one_that_peft_merges(hub: Path, tmp_path: Path) -> None:
    tasks = {"one": hub / "one", "two": hub / "two"}
    merge_checkpoints("individual", {}, hub / "base", tasks, tmp_path / "out", device="cpu")
    for task in tasks:
        write_task_model(tmp_path / "out", task, tmp_path / "own.safetensors")
        own, wanted = parameters(tmp_path / "own.safetensors"), parameters(hub / f"{task}-merged")
        for name, value in wanted.items():
            torch.testing.assert_close(own[name], value, rtol=0, atol=1e-6)


def test_what_no_adapter_touches_stays_the_bases_to_the_last_bit(hub: Path, tmp_path: Path) -> None:
    tasks = {"one": hub / "one", "two": hub / "two"}
    merge_checkpoints("iso_c", {}, hub / "base", tasks, tmp_path / "out", device="cpu")
    base, found = parameters(hub / "base"), parameters(tmp_path / "out")
    same = {name for name in base if torch.equal(base[name], found[name])}
    assert same == {"attn.in_proj_bias", "emb.weight", "ln.weight", "ln.bias", "proj.bias"}


# layers of tasks that store different things


def sources(hub: Path, out: Path, models: dict[str, str]) -> tuple[Deltas, FactorSource]:
    """Extract and decompose, keeping few of a whole delta's vectors and all of an adapter's."""
    (out / "svd").mkdir(parents=True)
    for task, name in models.items():
        decompose(
            extracted(hub / "base", hub / name, out / f"{task}.safetensors"), FactorSettings(0.1), out / "svd" / task
        )
    return open_deltas(out, list(models)), open_factors(out / "svd", list(models))


def test_adapters_of_different_ranks_and_layers_come_as_their_factors(hub: Path, tmp_path: Path) -> None:
    deltas, factors = sources(hub, tmp_path, {"one": "one", "two": "two"})
    dense, _ = sources(hub, tmp_path / "dense", {"one": "one-merged", "two": "two-merged"})
    assert deltas.names == factors.names == tuple(sorted(deltas.kinds))
    assert deltas.shapes == factors.shapes == {name: dense.shapes[name] for name in deltas.names}
    ranks = {"conv1.weight": [2, 0], "proj.weight": [0, 3], "fc.weight": [4, 3], "attn.in_proj_weight": [2, 3]}
    for name, expected in ranks.items():
        layer, wanted = deltas.layer(name), dense.layer(name)
        assert isinstance(layer, LayerLowRank)
        assert isinstance(wanted, LayerDeltas)
        assert [left.shape[1] for left in layer.left] == expected
        assert layer.norms == pytest.approx(wanted.norms)
        torch.testing.assert_close(layer.dense().deltas, wanted.deltas, rtol=1e-5, atol=1e-6)
        decomposed = factors.layer(name)
        assert isinstance(decomposed, LayerFactors)
        assert [f.u.shape[1] for f in decomposed.factors] == expected
        assert all(len(f.s) == min(decomposed.shape) for f in decomposed.factors)
        torch.testing.assert_close(
            torch.stack([rebuilt(f) for f in decomposed.factors]), wanted.deltas, rtol=1e-4, atol=1e-5
        )


def test_an_adapter_beside_a_whole_model_comes_multiplied_out(hub: Path, tmp_path: Path) -> None:
    deltas, factors = sources(hub, tmp_path, {"one": "one", "two": "two-merged"})
    dense, _ = sources(hub, tmp_path / "dense", {"one": "one-merged", "two": "two-merged"})
    assert deltas.names == factors.names == dense.names
    assert deltas.kinds == factors.kinds == dense.kinds
    assert deltas.shapes == factors.shapes == dense.shapes
    for layer, wanted, decomposed in zip(deltas, dense, factors, strict=True):
        assert isinstance(layer, LayerDeltas)
        assert isinstance(wanted, LayerDeltas)
        torch.testing.assert_close(layer.deltas, wanted.deltas, rtol=1e-5, atol=1e-6)
        assert layer.norms == decomposed.norms == pytest.approx(wanted.norms)
        if isinstance(decomposed, LayerDeltas):
            assert torch.equal(decomposed.deltas, layer.deltas)


def test_an_update_of_no_rank_and_one_of_more_than_the_matrix_has_are_decomposed(hub: Path, tmp_path: Path) -> None:
    write_adapter(hub / "full", hub / "base", seed=3, r=40, rank_pattern={"fc": 1})
    rewritten(hub / "full", lambda name: name, lambda value: value * (len(value) != 1))
    _, factors = sources(hub, tmp_path, {"one": "full"})
    deltas = extracted(hub / "base", hub / "full", tmp_path / "again.safetensors")
    assert not deltas.delta("fc.weight").any()
    for layer in factors:
        assert isinstance(layer, LayerFactors)
        (found,) = layer.factors
        assert found.u.shape[1] == (0 if layer.name == "fc.weight" else min(layer.shape))
        torch.testing.assert_close(rebuilt(found), deltas.matrix(layer.name), rtol=1e-4, atol=1e-5)


def test_factors_that_are_there_are_decomposed_again_only_when_the_adapter_changes(hub: Path, tmp_path: Path) -> None:
    deltas = extracted(hub / "base", hub / "one", tmp_path / "one.safetensors")
    assert decompose(deltas, FactorSettings(1.0), tmp_path / "svd") == (4, 0)
    assert decompose(deltas, FactorSettings(0.1), tmp_path / "svd") == (0, 4)  # an adapter's rank is kept whole
    other = extracted(hub / "base", hub / "two", tmp_path / "two.safetensors")
    assert decompose(other, FactorSettings(1.0), tmp_path / "svd") == (5, 0)
