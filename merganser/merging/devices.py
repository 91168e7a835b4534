"""Merging on a GPU: while one layer is merged there, the next is read and copied to it, the last result copied back.

The files of the base and of all models are read in threads, into page-locked memory. Copies run each way on their own
stream, in parallel with the stream that computes. At most two layers are on the GPU, the current one and the next, plus
the method's own memory and the result on its way back. Large parameters are divided into layers of `PIECE` values if
the method allows it.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import partial
from itertools import islice
from math import prod
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from merganser.checkpoints.tensors import Checkpoint
from merganser.errors import InputError
from merganser.inputs.layers import Layer, LayerSource, WrappedSource
from merganser.linalg.svd import free_memory

R = TypeVar("R")
PIECE = 1 << 26  # values of all tasks together: 256 MiB in float32; the same on every GPU, as sums depend on it
ON_THEIR_WAY = 2  # layers, at most, besides the one in work: the next, and a result as large as all that is merged
GB = 1e9


@contextmanager
def full_precision() -> Iterator[None]:
    """Multiply float32 matrices in float32, not in TF32 (GPUs) or bfloat16 (CPUs), whatever the caller chose."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


@contextmanager
def enough_memory() -> Iterator[None]:
    """Raise InputError if the GPU runs out of memory."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise InputError(
            "--device cuda: the GPU's memory cannot hold two layers of all tasks and the work on one; use --device cpu"
        ) from error


def check_memory(layers: LayerSource, copies: float, device: torch.device) -> None:
    """Raise InputError if the GPU's free memory is too small for the largest layer.

    `copies`: the peak, in float32 copies of a layer's values of all tasks and the base.
    """
    sizes = {name: prod(shape) for name, shape in layers.shapes.items()}
    name = max(sizes, key=lambda each: sizes[each], default="")
    needed = 4 * sizes.get(name, 0) * copies * (len(layers.tasks) + 1)
    free = free_memory(device)
    if needed > free:
        size = f"{name} of {len(layers.tasks)} tasks needs {needed / GB:.3g} GB of the GPU's memory"
        raise InputError(f"--device cuda: {size}, {free / GB:.3g} GB are free; use --device cpu")


def each_tensor(value: R, change: Callable[[Tensor], Tensor]) -> R:
    """Change every tensor in a value, through tuples, lists, dicts and dataclasses; the rest stays as it is."""
    after: Any = value
    if isinstance(value, Tensor):
        after = change(value)
    elif is_dataclass(value) and not isinstance(value, type):
        after = replace(value, **{f.name: each_tensor(getattr(value, f.name), change) for f in fields(value) if f.init})
    elif isinstance(value, Mapping):
        after = {key: each_tensor(each, change) for key, each in value.items()}
    elif isinstance(value, tuple) and hasattr(value, "_make"):
        after = cast(Any, value)._make(each_tensor(each, change) for each in value)
    elif type(value) in (tuple, list):
        after = type(value)(each_tensor(each, change) for each in value)  # type: ignore[call-arg, attr-defined]
    return cast(R, after)


class CudaStreams:
    """A GPU's streams: the one that computes in every thread, one for copies to the GPU, one for copies back."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.compute = device, torch.cuda.default_stream(device)
        self.up, self.down = torch.cuda.Stream(device), torch.cuda.Stream(device)

    def send(self, value: R) -> R:
        """Copy all tensors of a value to the GPU by way of page-locked memory; return when they are there."""
        with torch.cuda.stream(self.up):
            sent = each_tensor(value, self._sent)
        self.up.synchronize()
        return sent

    def _sent(self, tensor: Tensor) -> Tensor:
        there = tensor.pin_memory().to(self.device, non_blocking=True)
        there.record_stream(self.compute)  # its memory is not given away before the work on it is done
        return there

    def fetch(self, result: R) -> Callable[[], R]:
        """Begin to copy a result back to page-locked memory; return a function that waits and returns it once."""
        self.down.wait_stream(self.compute)
        with torch.cuda.stream(self.down):
            fetched = [each_tensor(result, self._fetched)]
        there = self.down.record_event()

        def arrived() -> R:
            there.synchronize()
            return fetched.pop()

        return arrived

    def _fetched(self, tensor: Tensor) -> Tensor:
        if not tensor.is_cuda:
            return tensor
        here = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        here.copy_(tensor, non_blocking=True)
        tensor.record_stream(self.down)
        return here


@dataclass(frozen=True)
class DeviceLayers(WrappedSource):
    """A source that reads layers and copies them to the GPU, one ahead of its use, and builds them there.

    With a base, each layer's `start` has the base's values of its parameter.
    """

    streams: CudaStreams
    base: Checkpoint | None = None

    def layer(self, name: str) -> Layer:
        """Read one parameter of all tasks, on the GPU."""
        return self._sent(name, map)()

    def _sent(self, name: str, each: Callable[..., Iterable[Any]]) -> Callable[[], Layer]:
        """Read a layer's parts and copy them to the GPU, by a kind of `map`; return what builds the layer there."""
        unread, inference = self.source.unread(name, self.base), torch.is_inference_mode_enabled()

        def send(read: Callable[[], Any]) -> Any:
            with torch.inference_mode(inference):  # a thread begins without it
                return self.streams.send(read())

        return partial(unread.make, *each(send, unread.reads))

    def map(self, function: Callable[[Layer], R]) -> Iterator[R]:
        """Apply a function to each layer on the GPU; yield the results with their tensors on the CPU.

        The next layer begins when the one before this has left the GPU. Raises InputError if two do not fit.
        """
        inference = torch.is_inference_mode_enabled()

        def sent(name: str) -> list[Callable[[], Layer]]:
            with torch.inference_mode(inference):
                return [self._sent(name, readers.map)]

        def work(box: list[Callable[[], Layer]]) -> Callable[[], R]:
            torch.cuda.set_device(torch.cuda.current_device())  # a new thread has no context, of which cuBLAS warns
            with torch.inference_mode(inference):
                fetched = self.streams.fetch(function(box.pop()()))
                self.streams.compute.synchronize()  # memory that is no longer referenced is free then
            return fetched

        names, before = iter(self.names), None
        with (
            enough_memory(),
            ThreadPoolExecutor(1 + len(self.tasks)) as readers,  # one for each model: each file is read in its order
            ThreadPoolExecutor(1) as ahead,
            ThreadPoolExecutor(1) as worker,
        ):
            coming = [ahead.submit(sent, name) for name in islice(names, 1)]
            while coming:
                box = coming.pop().result()
                coming = [ahead.submit(sent, name) for name in islice(names, 1)]
                running = worker.submit(work, box)
                if before:
                    yield before()  # and whatever is done with it, while this layer is merged
                before = running.result()
            if before:
                yield before()
