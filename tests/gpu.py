"""A pretended GPU, for machines without one: tensors say that they are on it and are computed with on the CPU.

As with a real one, what is on it and what is not cannot be computed with together, numpy cannot read what is on it, and
copies to and fro make new memory. It says nothing about speed, and rounds as the CPU does.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from threading import RLock
from typing import Any
from weakref import finalize

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from merganser.evaluation import prepared
from merganser.merging import devices

PLACE = torch.device("cuda", 0)
aten = torch.ops.aten
# Copies between devices are what the first are for; the others take their index from the CPU too.
MIXED = {aten.copy_.default, aten._to_copy.default, aten.to.device, aten.to.dtype_layout, aten.to.other}
INDEXED = {aten.index.Tensor, aten.index_put_.default, aten.index_put.default}


class Memory:
    """The bytes of the storages of all tensors on the pretended GPU, and the most since `reset`."""

    def __init__(self) -> None:
        self.used = self.peak = 0
        self._holders = Counter[int]()  # tensors, by where their storage begins
        self._lock = RLock()  # a finalizer may run within `hold`

    def reset(self) -> None:
        """Forget the peak."""
        self.peak = self.used

    def hold(self, tensor: "OnGpu") -> None:
        """Count a tensor's storage, once, until no tensor has it."""
        storage = tensor.held.untyped_storage()
        place, size = storage.data_ptr(), storage.nbytes()
        with self._lock:
            self._holders[place] += 1
            self.used += size if self._holders[place] == 1 else 0
            self.peak = max(self.peak, self.used)
        finalize(tensor, self._release, place, size)

    def _release(self, place: int, size: int) -> None:
        with self._lock:
            self._holders[place] -= 1
            self.used -= 0 if self._holders[place] else size


MEMORY = Memory()


class OnGpu(Tensor):
    """A tensor that says it is on the GPU; `held` is what it stands for."""

    held: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, held: Tensor) -> "OnGpu":
        size, stride, start = held.shape, held.stride(), held.storage_offset()
        return Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls, size, strides=stride, storage_offset=start, dtype=held.dtype, device=PLACE
        )

    def __init__(self, held: Tensor) -> None:
        self.held = held
        MEMORY.hold(self)

    def record_stream(self, stream: Any) -> None:
        """Keep nothing: memory that is pretended is not given away."""

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise AssertionError(f"{func} where nothing pretends to be a GPU")


class _Dispatch(TorchDispatchMode):
    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled, and to have that said takes as long as the rest

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        leaves = [*_leaves(args), *_leaves(kwargs.values())]
        given = [each for each in leaves if isinstance(each, Tensor)]
        there = [each for each in given if isinstance(each, OnGpu)]
        wanted = next((each for each in leaves if isinstance(each, torch.device)), None)
        gpu = bool(there) if wanted is None else wanted.type == "cuda"
        if not there and not gpu:
            return func(*args, **kwargs)
        _check(func, given, there, args)
        if func is aten.copy_.default:
            gpu = isinstance(args[0], OnGpu)
        known = {id(_held(each)): each for each in given}
        moved = wanted is not None and any(isinstance(each, OnGpu) != gpu for each in given)

        def placed(out: Any) -> Any:
            if not isinstance(out, Tensor):
                return out
            if moved:
                out = out.clone()
            elif id(out) in known:
                return known[id(out)]
            return OnGpu(out) if gpu else out

        out = func(*map(_held, args), **{key: _held(value) for key, value in kwargs.items()})
        return type(out)(map(placed, out)) if isinstance(out, list | tuple) else placed(out)


def _leaves(values: Iterable[Any]) -> Iterator[Any]:
    """List what an operator is given; its arguments may be lists, of no lists."""
    for value in values:
        if isinstance(value, list | tuple):
            yield from value
        else:
            yield value


def _held(value: Any) -> Any:
    if isinstance(value, torch.device):
        return torch.device("cpu")
    if isinstance(value, list | tuple):
        return type(value)(map(_held, value))
    return value.held if isinstance(value, OnGpu) else value


def _check(func: Any, given: list[Tensor], there: list[Tensor], args: Any) -> None:
    """Refuse to compute with tensors on both devices; one of no dimensions may be on the CPU."""
    if func in INDEXED:
        given = [each for each in (args[0], *args[2:3]) if isinstance(each, Tensor)]
    if not there or func in MIXED:
        return
    strangers = [each for each in given if not isinstance(each, OnGpu)]
    together = func in (aten.cat.default, aten.stack.default)
    if strangers and (together or any(each.ndim for each in strangers)):
        raise RuntimeError(f"{func}: tensors on two devices, {[(each.device, tuple(each.shape)) for each in given]}")


class _Functions(TorchFunctionMode):
    """What torch does in C++ before any of its operators is called."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.tensor and kwargs.get("device") is not None:
            device = kwargs.pop("device")
            return func(*args, **kwargs).to(device)
        if func is Tensor.tolist:
            return func(args[0].cpu())
        if func is Tensor.pin_memory:
            return args[0]
        if func is torch.empty:
            kwargs.pop("pin_memory", None)
        return func(*args, **kwargs)


class Stream:
    """A stream that does everything at once, and notes what it was told to wait for."""

    def __init__(self, device: torch.device) -> None:
        self.waited: list[Stream] = []

    def synchronize(self) -> None:
        """Wait for nothing: all is done."""

    def wait_event(self, event: "Stream") -> None:
        """Wait for nothing: all is done."""

    def wait_stream(self, stream: "Stream") -> None:
        """Note what was to be waited for."""
        self.waited.append(stream)

    def record_event(self) -> "Stream":
        """Give something to wait for."""
        return self


class _Threads(ThreadPoolExecutor):
    """Threads that find the pretended GPU too, and have left its modes before they end."""

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
        def pretending() -> Any:
            with _Functions(), _Dispatch():
                return fn(*args, **kwargs)

        return super().submit(pretending)


@contextmanager
def pretended() -> Iterator[None]:
    """Let merges find a GPU, which is none."""
    torch._C._ensureCUDADeviceGuardSet()
    compute = Stream(PLACE)
    with pytest.MonkeyPatch.context() as patch, _Functions(), _Dispatch():
        patch.setattr(torch.cuda, "_lazy_init", lambda: None)
        patch.setattr(torch.cuda, "is_available", lambda: True)
        patch.setattr(torch.cuda, "current_device", lambda: 0)
        patch.setattr(torch.cuda, "set_device", lambda device: None)
        patch.setattr(torch.cuda, "mem_get_info", lambda device=None: (1 << 34, 1 << 34))
        patch.setattr(torch.cuda, "Stream", Stream)
        patch.setattr(torch.cuda, "default_stream", lambda device=None: compute)
        patch.setattr(torch.cuda, "current_stream", lambda device=None: compute)
        patch.setattr(torch.cuda, "get_device_name", lambda device=None: "pretended")
        patch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
        for module in (devices, prepared):
            patch.setattr(module, "ThreadPoolExecutor", _Threads)
        yield


HERE = torch.cuda.is_available()
real_gpu = [pytest.mark.gpu, pytest.mark.skipif(not HERE, reason="needs a GPU")]
pretended_gpu = pytest.mark.skipif(HERE, reason="this machine has a GPU")
# A test's `gpu` is to be entered wherever a GPU computes.
every_gpu = pytest.mark.parametrize(
    "gpu", [pytest.param(pretended, marks=pretended_gpu), pytest.param(nullcontext, marks=real_gpu)]
)
# The same, for what a pretended GPU tries at length: in a drill.
real_gpu_first = pytest.mark.parametrize(
    "gpu",
    [pytest.param(pretended, marks=[pretended_gpu, pytest.mark.drill]), pytest.param(nullcontext, marks=real_gpu)],
)
