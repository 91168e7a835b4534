"""What a merge takes of a GPU's memory: pieces of large parameters, and no more than its method declares."""

import gc
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from merganser import registry
from merganser.checkpoints.reading import open_checkpoint
from merganser.checkpoints.writing import save_tensors
from merganser.errors import InputError
from merganser.linalg import blocks, svd
from merganser.merging import devices
from merganser.merging.devices import CudaStreams, DeviceLayers
from tests.gpu import MEMORY, every_gpu, pretended, pretended_gpu
from tests.laws.layers import Layers, made_layer, with_start
from tests.laws.test_registry_properties import as_read, choices, every_method, methods_that
from tests.merges import merge_checkpoints
from tests.merging.peaks import FEW

Gpu = Callable[[], AbstractContextManager[None]]
SHAPES = {"map.weight": (300, 400), "kernel.weight": (64, 8, 3, 3), "bias": (300,)}


def large_models(folder: Path, dtype: torch.dtype = torch.bfloat16, tasks: int = 2) -> dict[str, Path]:
    """Write a base and its fine-tuned models, whose first parameters are large for the pieces of these tests."""
    drawn = torch.Generator().manual_seed(0)
    base = {name: torch.randn(shape, generator=drawn) for name, shape in SHAPES.items()}
    models = {"base": base}
    for task in range(tasks):
        models[f"task{task}"] = {n: x + 0.05 * torch.randn(x.shape, generator=drawn) for n, x in base.items()}
    for name, state in models.items():
        (folder / name).mkdir(parents=True)
        save_tensors(folder / name / "model.safetensors", {each: x.to(dtype) for each, x in state.items()})
    return {name: folder / name for name in models}


def merge(models: dict[str, Path], out: Path, method: str, device: str, **values: Any) -> dict[str, torch.Tensor]:
    tasks = {name: path for name, path in models.items() if name != "base"}
    merge_checkpoints(method, values, models["base"], tasks, out, device=device)
    return load_file(out / "model.safetensors")


@every_gpu
@methods_that(lambda method: "matrix" in method.divided and method.needs == ["deltas"] and not method.overlay)
def test_a_gpu_merges_in_pieces_as_the_cpu_does(
    name: str, gpu: Gpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models = large_models(tmp_path / "models", torch.float32)
    cpu = merge(models, tmp_path / "cpu", name, "cpu")
    monkeypatch.setattr(devices, "PIECE", 20_000)
    monkeypatch.setattr(blocks, "GPU_BLOCK", 5000)
    with gpu():
        found = merge(models, tmp_path / "gpu", name, "cuda")
    for each, expected in cpu.items():
        torch.testing.assert_close(found[each], expected, rtol=1e-5, atol=1e-6)


@pretended_gpu
@pytest.mark.parametrize("name", ["task_arithmetic", "ties", "dare", "sce", "slerp"])
def test_memory_is_bounded_by_pieces_whatever_the_size_of_a_parameter(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models = large_models(tmp_path / "models")
    piece = 20_000
    monkeypatch.setattr(devices, "PIECE", piece)
    monkeypatch.setattr(blocks, "GPU_BLOCK", piece // 4)
    sizes: list[int] = []
    method, hold = registry.get(name), MEMORY.hold
    with pretended():
        MEMORY.reset()
        before = MEMORY.used
        monkeypatch.setattr(MEMORY, "hold", lambda tensor: (sizes.append(tensor.numel()), hold(tensor))[1])
        merge(models, tmp_path / "out", name, "cuda")
    largest = 2 * SHAPES["map.weight"][0] * SHAPES["map.weight"][1]
    histograms = {"ties": 1 << 17, "sce": 1 << 17}  # of magnitudes, whatever the size of a layer
    assert max(sizes) <= max(piece, histograms.get(name, 0)) < largest
    copies = method.copies + devices.ON_THEIR_WAY * (1 + method.by_parameter)
    assert MEMORY.peak - before <= 4 * piece * copies * 3 / 2 + 8 * 4 * histograms.get(name, 0)


@pretended_gpu
def test_a_layer_too_large_for_the_gpu_is_refused_before_any_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models, free = large_models(tmp_path / "models"), 4 * 3 * 300 * 400 * 8
    with pretended():
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device=None: (free, free))
        said = r"^--device cuda: map.weight of 2 tasks needs 0.013 GB of the GPU's memory, 0.0115 GB are free; use"
        with pytest.raises(InputError, match=said):  # 7 copies, and 2 on their way
            merge(models, tmp_path / "out", "tsv_m", "cuda")
        assert not (tmp_path / "out").exists()
        monkeypatch.setattr(devices, "PIECE", 20_000)
        merge(models, tmp_path / "out", "ties", "cuda")  # in pieces
    assert open_checkpoint(tmp_path / "out").names


@pytest.mark.drill
@pretended_gpu
@every_method
def test_a_merge_takes_no_more_of_the_gpu_than_its_method_declares(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "GPU_BLOCK", 1 << 17)
    monkeypatch.setattr(svd, "SHARE", 0)  # matrices are decomposed together in what is free beyond that
    method = registry.get(name)
    drawn = 0.01 * torch.randn(method.most_tasks or 3, 700, 800, generator=torch.Generator().manual_seed(0))
    source = with_start(method, Layers(as_read(name, [made_layer("w", "matrix", drawn)])))
    few = {key: value for key, value in FEW.items() if key in method.parameters.model_fields}
    for each in choices(name):
        values, merged = method.validate(name, few | each), None
        with pretended(), torch.inference_mode():
            layers = DeviceLayers(source, CudaStreams(torch.device("cuda")))
            layer = layers.layer("w")
            gc.collect()
            MEMORY.reset()
            given = MEMORY.used
            merge_layer = method.bind(values, layers)
            first, _ = MEMORY.peak - given, MEMORY.reset()  # with a layer of its own
            merged = merge_layer(layer)
            beyond = max(first - given, MEMORY.peak - given)
        del merged, merge_layer, layer
        assert 1 + beyond / (4 * drawn.numel()) <= method.copies, values
