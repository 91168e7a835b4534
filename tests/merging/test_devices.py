"""Merging on a GPU. Where there is none a pretended one shows what runs where; numbers and memory take a real one."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from merganser import registry
from merganser.checkpoints.reading import open_checkpoint
from merganser.checkpoints.writing import save_tensors
from merganser.errors import InputError
from merganser.inputs.layers import Layer, LayerDeltas, LayerFactors, LayerLowRank, LayerSource, Statistics
from merganser.linalg.decompositions import Basis, Factors
from merganser.merging import driver
from merganser.merging.devices import CudaStreams, DeviceLayers, each_tensor, full_precision
from merganser.overlays import task_model
from merganser.overlays.parts import Dense, LowRank, Parts
from tests.gpu import OnGpu, every_gpu, pretended, pretended_gpu, real_gpu, real_gpu_first
from tests.laws.layers import Layers, matrices, task_names, with_few_steps, with_start
from tests.laws.samples import layer_of, network
from tests.laws.test_registry_properties import choices, every_method, methods_that

Gpu = Callable[[], AbstractContextManager[None]]


@cache
def three_tasks() -> list[LayerDeltas]:
    """Make a network's layers; methods leave what they are given as it is."""
    return network(3)


def gpu_only(test: Any) -> Any:
    """Run a test where there is a real GPU."""
    for mark in real_gpu:
        test = mark(test)
    return test


def merge(name: str, values: dict[str, Any], layers: LayerSource, folder: Path, device: str = "cpu") -> None:
    """Merge layers in memory onto a base of zeros; what reads factors decomposes them on the device."""
    folder.mkdir()
    method = registry.get(name)
    filled = method.validate(name, with_few_steps(method, values))
    save_tensors(folder / "base.safetensors", {each: torch.zeros(shape) for each, shape in layers.shapes.items()})
    base, source = open_checkpoint(folder / "base.safetensors"), with_start(method, layers)
    driver.merge_layers(method, filled, source, base, folder, driver.choose_device(device))


def merge_both(name: str, values: dict[str, Any], layers: LayerSource, folder: Path, gpu: Gpu) -> None:
    """Merge on both devices, and compare the models of all tasks."""
    folder.mkdir()
    merge(name, values, layers, folder / "cpu")
    with gpu():
        merge(name, values, layers, folder / "gpu", "cuda")
    one_model = not registry.get(name).overlay
    for task in layers.tasks:
        cpu, found = (
            load_file(folder / each / "model.safetensors") if one_model else dict(task_model(folder / each, task))
            for each in ("cpu", "gpu")
        )
        assert list(found) == list(cpu)
        for parameter, expected in cpu.items():
            error = float((found[parameter] - expected).norm())
            assert error <= 1e-5 * float(expected.norm()), f"{parameter} of {task} with {values}"


@every_gpu
@every_method
def test_a_gpu_gives_the_cpus_models(name: str, gpu: Gpu, tmp_path: Path) -> None:
    for number, values in enumerate(choices(name)):
        merge_both(name, values, Layers(three_tasks()), tmp_path / str(number), gpu)


@every_gpu
@methods_that(lambda method: method.weighted)
def test_a_gpu_weighs_the_tasks_as_the_cpu_does(name: str, gpu: Gpu, tmp_path: Path) -> None:
    layers = Layers([layer for layer in three_tasks() if layer.name in ("wide", "bias")])
    merge_both(name, {"coefficients": {"task0": 0.5, "task1": -2.0}}, layers, tmp_path / "out", gpu)


@pytest.mark.filterwarnings("error:Attempting to run cuBLAS")  # in a thread without the GPU's context
@real_gpu_first
@methods_that(lambda method: not method.statistics)  # which are measured of whole matrices
def test_a_gpu_merges_adapters_as_the_cpu_does(name: str, gpu: Gpu, tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    left, right = (tuple(torch.randn(shape, generator=generator) for _ in range(3)) for shape in ((12, 2), (2, 9)))
    adapted = LayerLowRank("adapted", task_names(left), left, right, norms=(1.0, 2.0, 3.0))
    merge_both(name, {}, Layers([adapted, *three_tasks()[:2]]), tmp_path / "out", gpu)


SQUARES = ("dop", "nufilt", "optmerge", "wudi")  # hold a square matrix of the columns or rows of each layer


@real_gpu_first
@every_method
def test_a_gpu_merges_large_layers_as_the_cpu_does(name: str, gpu: Gpu, tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    long = (2, 3_000 if name in SQUARES else 140_000)
    shapes = {"long": long, "square": (96, 96), "bias": (70_000,)}
    drawn = {name: 0.01 * torch.randn(3, *shape, generator=generator) for name, shape in shapes.items()}
    merge_both(name, {}, Layers([layer_of(name, deltas) for name, deltas in drawn.items()]), tmp_path / "out", gpu)


@every_gpu
@methods_that(lambda method: method.cost == "joint svd")
def test_a_gpu_takes_a_basis_that_was_kept(name: str, gpu: Gpu, tmp_path: Path) -> None:
    layer = three_tasks()[0]
    matrices = layer.deltas.double().mT if name == "drm_v" else layer.deltas.double()
    u, s, _ = torch.linalg.svd(torch.cat(list(matrices), 1), full_matrices=False)
    merge_both(name, {}, Layers([replace(layer, basis=Basis(u, s)), *three_tasks()[1:]]), tmp_path / "out", gpu)


@gpu_only
@every_method
def test_merging_again_on_a_gpu_gives_the_same_bytes(name: str, tmp_path: Path) -> None:
    for out in ("one", "two"):
        merge(name, {}, Layers(three_tasks()), tmp_path / out, "cuda")
    one, two = ({p.name: p.read_bytes() for p in (tmp_path / out).iterdir()} for out in ("one", "two"))
    assert one == two


def many_layers(count: int) -> Layers:
    """Make layers of many sizes, small after large."""
    generator = torch.Generator().manual_seed(0)
    sizes = [int(10 ** (1 + 4 * float(torch.rand((), generator=generator)))) for _ in range(count)]
    return Layers([replace(layer_of("bias", torch.full((2, n), float(n))), name=f"l{k}") for k, n in enumerate(sizes)])


@every_gpu
@pytest.mark.parametrize("name", ["task_arithmetic", "individual"])
def test_layers_of_all_sizes_keep_apart(name: str, gpu: Gpu, tmp_path: Path) -> None:
    merge_both(name, {}, many_layers(60), tmp_path / "out", gpu)


def named(count: int) -> Layers:
    """Make layers that hold their own number."""
    return Layers([replace(layer_of("bias", torch.full((2, 3), float(k))), name=f"l{k}") for k in range(count)])


def number_of(layer: Layer) -> int:
    assert isinstance(layer, LayerDeltas)
    return int(layer.deltas.flatten()[0])


@dataclass(frozen=True)
class Watched(Layers):
    """A source that says what it is about to read, and makes each layer anew."""

    reading: Callable[[int], None] = lambda number: None

    def layer(self, name: str) -> Layer:
        self.reading(int(name[1:]))
        return each_tensor(super().layer(name), torch.clone)


@every_gpu
def test_results_come_in_order_on_the_cpu(gpu: Gpu) -> None:
    def function(layer: Layer) -> Any:
        assert isinstance(layer, LayerDeltas)
        assert layer.deltas.is_cuda
        number, low = layer.deltas[0, 0], LowRank(*(layer.deltas[:, :2] for _ in range(3)))
        parts = Parts({"task0": low, "task1": Dense(layer.deltas[1])}, layer.deltas[0], {"task0": {"task1": 0.5}})
        return parts, {"number": [number, 7]}, Factors(number, number, number), "words"

    with gpu():
        found = list(DeviceLayers(named(5), CudaStreams(torch.device("cuda"))).map(function))
    for k, (parts, numbers, factors, words) in enumerate(found):
        tensors: list[Tensor] = []
        each_tensor((parts, numbers, factors), lambda tensor, into=tensors: into.append(tensor) or tensor)
        assert len(tensors) == 9
        assert all(type(t) is Tensor and t.device.type == "cpu" and bool((t == k).all()) for t in tensors)
        assert (numbers["number"][1], words, parts.mixtures) == (7, "words", {"task0": {"task1": 0.5}})
        assert isinstance(parts.tasks["task0"], LowRank)


@every_gpu
def test_while_one_layer_is_merged_the_next_is_read_and_the_result_before_it_used(gpu: Gpu) -> None:
    read, used, merged = ([threading.Event() for _ in range(6)] for _ in range(3))

    def function(layer: Layer) -> int:
        number = number_of(layer)
        assert number == 5 or read[number + 1].wait(30), "the next layer is not read meanwhile"
        assert number == 0 or used[number - 1].wait(30), "the result before it is not used meanwhile"
        merged[number].set()
        return number

    def reading(number: int) -> None:
        assert number < 2 or merged[number - 2].is_set(), "read too early: there would be three layers"
        read[number].set()

    with gpu():
        for number in DeviceLayers(Watched(named(6).layers, reading), CudaStreams(torch.device("cuda"))).map(function):
            used[number].set()
    assert all(event.is_set() for event in read + used + merged)


@pretended_gpu
def test_two_layers_at_most_are_on_the_gpu_and_none_is_kept_off_it(monkeypatch: pytest.MonkeyPatch) -> None:
    there: list[StorageWeakRef] = []
    here: list[StorageWeakRef] = []
    send = CudaStreams.send

    def watched(streams: CudaStreams, layer: Layer) -> Layer:
        assert all(part.expired() for part in here)
        assert sum(not part.expired() for part in there) <= 1, "the one in work, and no other"
        sent = send(streams, layer)
        assert isinstance(layer, LayerDeltas)
        assert isinstance(sent, LayerDeltas)
        assert isinstance(sent.deltas, OnGpu)
        here[:] = [StorageWeakRef(layer.deltas.untyped_storage())]
        there.append(StorageWeakRef(sent.deltas.held.untyped_storage()))
        return sent

    monkeypatch.setattr(CudaStreams, "send", watched)
    with pretended():
        layers = DeviceLayers(Watched(named(8).layers), CudaStreams(torch.device("cuda")))
        assert [float(each) for each in layers.map(lambda layer: layer.deltas.sum())] == [6.0 * k for k in range(8)]
    assert len(there) == 8


@every_gpu
@pytest.mark.parametrize("place", ["reading", "merging", "using"])
def test_an_error_ends_it_all(place: str, gpu: Gpu) -> None:
    begun, before = [], threading.active_count()

    def reading(number: int) -> None:
        begun.append(number)
        if (place, number) == ("reading", 3):
            raise ValueError("layer 3")

    def function(layer: Layer) -> int:
        if (place, number_of(layer)) == ("merging", 3):
            raise ValueError("layer 3")
        return number_of(layer)

    def use() -> None:
        layers = DeviceLayers(Watched(named(100).layers, reading), CudaStreams(torch.device("cuda")))
        for number in layers.map(function):
            if (place, number) == ("using", 3):
                raise ValueError("layer 3")

    with gpu(), pytest.raises(ValueError, match="layer 3"):
        use()
    assert max(begun) <= 5
    assert threading.active_count() == before


@every_gpu
def test_a_gpu_too_small_is_said_to_be(gpu: Gpu) -> None:
    def function(layer: Layer) -> None:
        raise torch.OutOfMemoryError("tried to allocate more than there is")

    with gpu(), pytest.raises(InputError, match="cannot hold two layers"):
        list(DeviceLayers(named(5), CudaStreams(torch.device("cuda"))).map(function))


@every_gpu
def test_no_layers_give_no_results(gpu: Gpu) -> None:
    with gpu():
        assert list(DeviceLayers(Watched([]), CudaStreams(torch.device("cuda"))).map(number_of)) == []


@every_gpu
def test_threads_compute_without_gradients_where_the_caller_does(gpu: Gpu) -> None:
    for wanted in (True, False):
        with gpu(), torch.inference_mode(wanted):
            layers = DeviceLayers(named(3), CudaStreams(torch.device("cuda")))
            assert set(layers.map(lambda layer: torch.is_inference_mode_enabled())) == {wanted}


@pretended_gpu
def test_results_wait_for_the_computation_and_the_copies_have_streams_of_their_own() -> None:
    with pretended():
        streams = CudaStreams(torch.device("cuda"))
        streams.fetch(torch.ones(2, device="cuda"))
        assert streams.down.waited == [streams.compute]
    assert len({id(each) for each in (streams.up, streams.down, streams.compute)}) == 3


def test_float32_is_multiplied_in_float32_and_the_callers_choice_comes_back() -> None:
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("medium")
        with full_precision():
            assert torch.get_float32_matmul_precision() == "highest"
            assert not torch.backends.cuda.matmul.allow_tf32
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision(before)


def test_every_tensor_of_a_value_is_changed_and_nothing_else() -> None:
    layers: Sequence[Layer] = (
        replace(
            matrices([torch.ones(2, 3)]),
            basis=Basis(torch.ones(2, 1), torch.ones(1)),
            statistics=Statistics(),
            base=torch.ones(2, 3),
        ),
        LayerDeltas("w", "vector", ("a",), torch.ones(1, 2), statistics=Statistics({"fisher": torch.ones(1, 2)})),
        LayerFactors("w", ("a",), (Factors(torch.ones(2, 1), torch.ones(2), torch.ones(1, 2)),)),
        LayerLowRank("w", ("a",), (torch.ones(2, 1),), (torch.ones(1, 2),)),
    )
    for layer, count in zip(layers, (4, 2, 3, 2), strict=True):
        seen: list[Tensor] = []
        changed = each_tensor(layer, lambda tensor, into=seen: into.append(tensor) or 2 * tensor)
        assert len(seen) == count
        again: list[Tensor] = []
        each_tensor(changed, lambda tensor, into=again: into.append(tensor) or tensor)
        assert all(bool((tensor == 2).all()) for tensor in again)
        assert (type(changed), changed.name, changed.tasks) == (type(layer), layer.name, layer.tasks)


@pretended_gpu
def test_what_a_real_gpu_refuses_the_pretended_one_refuses() -> None:
    def wrong() -> Iterator[Callable[[], Any]]:
        there, here = torch.ones(3, device="cuda"), torch.ones(3)
        yield lambda: there + here
        yield lambda: here.add_(there)
        yield lambda: torch.stack([there, here])
        yield lambda: torch.stack([there.sum(), here.sum()])
        yield lambda: torch.where(there > 0, there, here)
        yield lambda: there.numpy()
        yield lambda: there @ torch.ones(3, 3)
        yield lambda: torch.maximum(there, here, out=there)

    with pretended(), torch.inference_mode():
        for each in wrong():
            with pytest.raises((RuntimeError, TypeError), match=r"two devices|numpy"):
                each()
        there = torch.ones(3, device="cuda")
        assert there.device.type == "cuda"
        assert not torch.zeros(2).is_cuda
        for right in (there + torch.tensor(1.0), there.cpu().to("cuda"), there[torch.tensor([0])], there * 2):
            assert right.is_cuda
        there.cpu().zero_()  # memory of its own
        assert there.tolist() == [1, 1, 1]
        there[:2].mul_(3)  # the same memory
        assert there.tolist() == [3, 3, 1]
        assert float(torch.tensor([2.0], device="cuda").sum()) == 2


@gpu_only
def test_copies_run_beside_the_computation() -> None:
    streams = CudaStreams(torch.device("cuda"))
    assert len({each.cuda_stream for each in (streams.up, streams.down, streams.compute)}) == 3


@gpu_only
@pytest.mark.parametrize("name", ["task_arithmetic", "individual", "ties", "tsv_m"])
def test_the_gpus_memory_does_not_grow_with_the_number_of_layers(name: str, tmp_path: Path) -> None:
    torch.cuda.init()
    generator = torch.Generator().manual_seed(0)
    peaks = []
    for count in (4, 16):
        drawn = [matrices([torch.randn(512, 512, generator=generator) for _ in range(4)]) for _ in range(count)]
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        layers = Layers([replace(layer, name=f"l{k}") for k, layer in enumerate(drawn)])
        merge(name, {}, layers, tmp_path / str(count), "cuda")
        peaks.append(torch.cuda.max_memory_allocated() - before)
    sent = list[int]()  # of a layer: its deltas, its statistics and the base's weights
    each_tensor(layers.layer("l0"), lambda tensor: (sent.append(tensor.nbytes), tensor)[1])
    assert peaks[1] <= peaks[0] + sum(
        sent
    )  # which may be there or not when the most is: growth would be twelve of them
    if (
        name == "task_arithmetic"
    ):  # a float64 sum is half the deltas, and the result a fourth: this one's and the last's
        assert peaks[1] <= 2 * sum(sent) + 1.25 * 4 * 512 * 512 * 4
