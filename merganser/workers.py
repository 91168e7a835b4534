"""Layers in parallel: threads with one BLAS thread each, so that results are the same however many there are.

Torch and the LAPACK calls of `linalg` release Python's lock while they compute.
"""

import ctypes
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from math import prod
from typing import TypeVar
from weakref import finalize

import numpy as np
import psutil  # type: ignore[import-untyped]
import torch
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]
from torch import Tensor

# Large tensors in huge pages: what a fresh one costs is the first touch of each page. Torch reads this once.
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
VARIABLE = "MERGANSER_THREADS"
KEPT = 2**22  # bytes: tensors that are larger go back to the system when they are freed
M_MMAP_THRESHOLD = -3  # as malloc.h numbers it
AHEAD = 5  # items a thread: begun, or done and holding a result that is not yet taken
SHARE = 0.5  # of the free memory, which the items in work may be expected to take together

Item = TypeVar("Item")
R = TypeVar("R")


def threads_wanted() -> int:
    """Return how many layers to work on at once: MERGANSER_THREADS, else OMP_NUM_THREADS, else the usable CPUs."""
    for name in (VARIABLE, "OMP_NUM_THREADS"):
        if (value := os.environ.get(name, "")).isdecimal() and int(value):
            return int(value)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Let torch and every BLAS library that is loaded use one thread a call."""
    _return_freed_memory()
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with threadpool_limits(1):
            yield
    finally:
        torch.set_num_threads(before)


def _return_freed_memory() -> None:
    """Make glibc return freed large tensors to the system: each thread would keep pieces, hundreds of MiB in all."""
    with suppress(AttributeError, OSError):  # another C library
        ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, KEPT)


class BufferPool:
    """Memory for float32 tensors that is reused: the first touch of fresh memory costs as much as reading into it.

    A buffer returns to the pool when the tensor and all views of it are freed. The pool never holds more than was in
    use at once.
    """

    def __init__(self) -> None:
        self._free: list[np.ndarray] = []

    def empty(self, *shape: int) -> Tensor:
        """Return a tensor with whatever was in its memory before."""
        size = prod(shape)
        try:
            buffer = self._free.pop()
        except IndexError:
            buffer = np.empty(0, np.float32)
        if len(buffer) < size:
            buffer = np.empty(size, np.float32)
        used = buffer[:size]
        finalize(used, self._free.append, buffer)
        return torch.from_numpy(used).view(shape)


def in_order(
    function: Callable[[Item], R],
    items: Iterable[Item],
    threads: int,
    weigh: Callable[[Item], int] = lambda _: 0,
) -> Iterator[R]:
    """Apply a function to each item in that many threads; yield the results in the items' order.

    `weigh` says how many bytes an item's work is expected to take: fewer are in work at once when memory is short.
    An error of the function is raised here, and what has not begun is not begun any more.
    """
    if threads == 1:
        yield from map(function, items)
        return
    budget = psutil.virtual_memory().available * SHARE
    inference = torch.is_inference_mode_enabled()

    def work(item: Item) -> R:
        with torch.inference_mode(inference):  # a thread begins without it
            return function(item)

    waiting: deque[tuple[int, Future[R]]] = deque()
    pool = ThreadPoolExecutor(threads)
    try:
        for item in items:
            weight = weigh(item)
            # More than can run: while the one whose turn it is takes long, the others go on with those after it.
            while waiting and (len(waiting) >= AHEAD * threads or _expected(waiting) + weight > budget):
                yield waiting.popleft()[1].result()
            waiting.append((weight, pool.submit(work, item)))
        while waiting:
            yield waiting.popleft()[1].result()
    finally:
        pool.shutdown(cancel_futures=True)


def _expected(waiting: Iterable[tuple[int, Future[R]]]) -> int:
    """Add up what the items that are not done are expected to take."""
    return sum(weight for weight, future in waiting if not future.done())
