"""Weights go over to a GPU as they are stored, and are checked and made deltas there."""

from collections import defaultdict
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from threading import Barrier

import pytest
import torch
from safetensors.torch import load_file

from merganser.checkpoints.kinds import ParameterRules
from merganser.checkpoints.reading import open_checkpoint, read_pinned
from merganser.checkpoints.tensors import Checkpoint, Part
from merganser.checkpoints.writing import save_tensors
from merganser.errors import InputError
from merganser.inputs import model_deltas
from merganser.inputs.layers import LayerDeltas
from merganser.inputs.model_deltas import ModelDeltas, open_models
from merganser.inputs.pieces import in_pieces
from merganser.merging import devices
from merganser.merging.devices import CudaStreams, DeviceLayers
from tests.gpu import every_gpu, pretended, pretended_gpu
from tests.merging.test_gpu_memory import large_models, merge

Gpu = Callable[[], AbstractContextManager[None]]
DTYPES = [torch.bfloat16, torch.float16, torch.float32, torch.float64]
EVERYTHING = frozenset({"matrix", "vector"})


def opened(models: dict[str, Path]) -> ModelDeltas:
    base, *tuned = (open_checkpoint(path) for path in models.values())
    return open_models(base, dict(zip(list(models)[1:], tuned, strict=True)), ParameterRules())


@every_gpu
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [20_000, 1 << 26])
def test_deltas_made_on_a_gpu_are_those_of_the_cpu(dtype: torch.dtype, size: int, gpu: Gpu, tmp_path: Path) -> None:
    models = large_models(tmp_path, dtype)
    here, there = (in_pieces(opened(models), EVERYTHING, size) for _ in range(2))
    with gpu():
        layers = DeviceLayers(there, CudaStreams(torch.device("cuda")), open_checkpoint(models["base"]))
        found = dict(layers.map(lambda layer: (layer.name, (layer, list(layer.norms)))))
    assert tuple(found) == here.names
    for expected in here:
        layer, norms = found[expected.name]
        assert isinstance(layer, LayerDeltas)
        assert isinstance(expected, LayerDeltas)
        assert torch.equal(layer.deltas, expected.deltas)  # one subtraction in float32
        assert norms == pytest.approx(list(expected.norms), rel=1e-5)
        assert (layer.kind, layer.rows, layer.tasks) == (expected.kind, expected.rows, expected.tasks)
        assert layer.start is not None
        assert layer.start.dtype == dtype


@pretended_gpu
@pytest.mark.parametrize("name", ["task_arithmetic", "ties", "tsv_m"])
def test_what_is_copied_has_the_dtype_of_the_files(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sent, fetched = list[torch.Tensor](), list[torch.Tensor]()
    send, fetch = CudaStreams._sent, CudaStreams._fetched
    monkeypatch.setattr(CudaStreams, "_sent", lambda self, tensor: (sent.append(tensor), send(self, tensor))[1])
    monkeypatch.setattr(CudaStreams, "_fetched", lambda self, tensor: (fetched.append(tensor), fetch(self, tensor))[1])
    models = large_models(tmp_path / "models")
    cpu = merge(models, tmp_path / "cpu", name, "cpu")
    with pretended():
        found = merge(models, tmp_path / "gpu", name, "cuda")
    values, passes = sum(tensor.numel() for tensor in cpu.values()), 3 if name == "ties" else 1
    assert {tensor.dtype for tensor in sent} == {torch.bfloat16}
    assert sum(tensor.numel() for tensor in sent) >= 3 * values * passes  # the base and two tasks
    assert sum(tensor.numel() for tensor in fetched if tensor.dtype == torch.bfloat16) == values  # with the base added
    for each, expected in cpu.items():
        torch.testing.assert_close(found[each], expected)


@every_gpu
@pytest.mark.parametrize("who", ["base", "task1"])
@pytest.mark.parametrize("wrong", [torch.nan, torch.inf])
@pytest.mark.parametrize("piece", [20_000, 1 << 26])
def test_nan_and_infinity_are_found_on_the_gpu(
    who: str, wrong: float, piece: int, gpu: Gpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models = large_models(tmp_path / "models")
    state = load_file(models[who] / "model.safetensors")
    state["map.weight"][77, 3] = wrong
    save_tensors(models[who] / "model.safetensors", state)
    monkeypatch.setattr(devices, "PIECE", piece)
    place = r"map.weight\[75:100\]" if piece == 20_000 else "map.weight"
    with gpu(), pytest.raises(InputError, match=f"^{who}: {place} holds NaN or infinity"):
        merge(models, tmp_path / "out", "task_arithmetic", "cuda")


@every_gpu
def test_a_merge_of_one_model_is_that_model_to_the_last_bit(gpu: Gpu, tmp_path: Path) -> None:
    models = large_models(tmp_path / "models", tasks=1)
    with gpu():
        found = merge(models, tmp_path / "out", "task_arithmetic", "cuda", scaling=1.0)
    for name, expected in load_file(models["task0"] / "model.safetensors").items():
        assert torch.equal(found[name], expected)


@every_gpu
def test_the_models_are_read_at_the_same_time_each_in_the_order_of_its_file(
    gpu: Gpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models, together, read = large_models(tmp_path), Barrier(3, timeout=30), defaultdict[int, list[str]](list)

    def waiting(checkpoint: Checkpoint, part: Part) -> torch.Tensor:
        together.wait()
        read[id(checkpoint)].append(str(part))
        return read_pinned(checkpoint, part)

    monkeypatch.setattr(model_deltas, "read_pinned", waiting)
    source = in_pieces(opened(models), EVERYTHING, 20_000)
    with gpu():
        names = list(DeviceLayers(source, CudaStreams(torch.device("cuda"))).map(lambda layer: layer.name))
    assert [*read.values()] == 3 * [names]
