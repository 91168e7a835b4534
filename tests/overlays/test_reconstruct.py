"""A task's own model out of a merge with parts per task: byte for byte the one that is evaluated."""

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from merganser import registry
from merganser.checkpoints.reading import Checkpoint, open_checkpoint
from merganser.merging.driver import merge_layers
from merganser.overlays import UNIFIED, task_model, write_task_model
from merganser.overlays.parts import Parts
from tests.laws.checkpoints import PARAMETERS, Models, write_models
from tests.laws.layers import delta_of

TASKS = 3
Written = Callable[[torch.dtype], Models]
OVERLAYS = [name for name in registry.names() if registry.get(name).overlay]
SHARED = ("byom_fft", "emr", "free", "tall_mask")
every_overlay = pytest.mark.parametrize("name", OVERLAYS)
both_dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Written:
    return cache(lambda dtype: write_models(tmp_path_factory.mktemp("models"), dtype, TASKS))


def expected(name: str, models: Models, task: str | None) -> dict[str, Tensor]:
    """Add a task's delta, or what all tasks share, as the method gives it in memory, to the base; round once."""
    method, source = registry.get(name), models.source(registry.get(name))
    merge_layer = method.bind(method.validate(name, {}), source)
    base, found = open_checkpoint(models.folder / "base.safetensors"), {}
    for layer in source:
        merged, weights = merge_layer(layer), base.read(layer.name)
        if isinstance(merged, Parts):
            left_out = method.linear_maps and not of_linear_map(layer.name, base)
            parts = Parts() if left_out or task is None else merged
            merged = delta_of(parts, task or "", tuple(weights.shape))
        merged = merged.reshape(weights.shape)
        found[layer.name] = (weights.float() + merged).to(weights.dtype)
    return found


def of_linear_map(name: str, base: Checkpoint) -> bool:
    """Tell whether a parameter is the weight of a linear map, which is no convolution, or its bias."""
    weight = f"{name.removesuffix('bias')}weight" if name.endswith("bias") else name
    return weight in base and len(base.spec(weight).shape) == 2


@every_overlay
@both_dtypes
def test_the_model_that_is_evaluated_is_reconstructed_byte_for_byte(
    name: str, dtype: torch.dtype, written: Written, tmp_path: Path
) -> None:
    models, method = written(dtype), registry.get(name)
    base = open_checkpoint(models.folder / "base.safetensors")
    merge_layers(method, method.validate(name, {}), models.source(method), base, tmp_path, torch.device("cpu"))
    assert (tmp_path / UNIFIED).exists() == (name in SHARED)
    shared = expected(name, models, None)
    assert all(torch.equal(value, shared[n]) for n, value in load_file(tmp_path / "model.safetensors").items())
    for task in models.tasks:
        evaluated = dict(task_model(tmp_path, task))
        write_task_model(tmp_path, task, tmp_path / f"own/{task}.safetensors")
        reconstructed, wanted = load_file(tmp_path / f"own/{task}.safetensors"), expected(name, models, task)
        assert evaluated.keys() == reconstructed.keys() == wanted.keys() == PARAMETERS.keys()
        for parameter, tensor in wanted.items():
            assert tensor.dtype == dtype
            assert torch.equal(evaluated[parameter], tensor), parameter
            assert torch.equal(reconstructed[parameter], tensor), parameter
