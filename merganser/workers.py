"""Layers in parallel: threads with one BLAS thread each, so that results do not depend on the number of threads.

Torch and the LAPACK calls of `linalg` release the GIL while they compute.
"""

import ctypes
import os
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from contextvars import copy_context
from functools import lru_cache
from math import prod
from typing import TypeVar
from weakref import finalize

import numpy as np
import torch
from threadpoolctl import ThreadpoolController  # type: ignore[import-untyped]
from torch import Tensor

from merganser.terminal.machine_limits import available_memory, usable_cpus

# Allocate large tensors in huge pages: a new tensor costs one page fault per page. Torch reads this once.
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
VARIABLE = "MERGANSER_THREADS"
KEPT = 2**22  # bytes: malloc returns larger tensors to the system when they are freed
KEPT_IN_ALL = 2**24  # bytes that each thread's arena keeps: new pages take longer than what is computed in them
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # from malloc.h
AHEAD = 5  # items per thread that are submitted and whose result is not yet consumed
SHARE = 0.5  # of the free memory that the items being processed may take

Item = TypeVar("Item")
R = TypeVar("R")


def threads_wanted() -> int:
    """Return how many layers to process in parallel: MERGANSER_THREADS, else OMP_NUM_THREADS, else the usable CPUs."""
    for name in (VARIABLE, "OMP_NUM_THREADS"):
        if (value := os.environ.get(name, "")).isdecimal() and int(value):
            return int(value)
    return usable_cpus()


def limit_loaded_libraries() -> None:
    """Limit torch and every BLAS library that is loaded to one thread per call, for good."""
    torch.set_num_threads(1)
    _loaded_libraries(len(sys.modules)).limit(limits=1)


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Limit torch and every loaded BLAS library to one thread per call."""
    _return_freed_memory()
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with _loaded_libraries(len(sys.modules)).limit(limits=1):
            yield
    finally:
        torch.set_num_threads(before)


@lru_cache(maxsize=1)
def _loaded_libraries(modules: int) -> ThreadpoolController:
    """Find the loaded BLAS libraries, again whenever the number of imported modules has changed."""
    return ThreadpoolController()


def _return_freed_memory() -> None:
    """Make glibc return freed large tensors to the system: the threads' arenas would keep hundreds of MiB in total."""
    with suppress(AttributeError, OSError):  # not glibc
        libc = ctypes.CDLL(None)
        libc.mallopt(M_MMAP_THRESHOLD, KEPT)
        libc.mallopt(M_TRIM_THRESHOLD, KEPT_IN_ALL)


class BufferPool:
    """Reused memory for float32 tensors: page faults on new memory take as long as reading a file into it.

    A buffer returns to the pool when the tensor and all views of it are freed. The pool never holds more buffers than
    were in use at one time.
    """

    def __init__(self) -> None:
        self._free: list[np.ndarray] = []

    def empty(self, *shape: int) -> Tensor:
        """Return an uninitialised tensor."""
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


def map_in_order(
    function: Callable[[Item], R],
    items: Iterable[Item],
    threads: int,
    weigh: Callable[[Item], int] = lambda _: 0,
) -> Iterator[R]:
    """Apply a function to each item in `threads` threads; yield the results in the items' order.

    `weigh` estimates the bytes that an item takes: fewer are processed at a time if memory is short. An error in the
    function is raised here, and items that have not started are cancelled.
    """
    if threads == 1:
        yield from map(function, items)
        return
    budget = available_memory() * SHARE
    inference = torch.is_inference_mode_enabled()

    def work(item: Item) -> R:
        with torch.inference_mode(inference):  # not inherited by threads
            return function(item)

    waiting: deque[tuple[int, Future[R]]] = deque()
    pool = ThreadPoolExecutor(threads)
    try:
        for item in items:
            weight = weigh(item)
            # Submit more than can run: while the next result takes long, the other threads process later items.
            while waiting and (len(waiting) >= AHEAD * threads or _expected(waiting) + weight > budget):
                yield waiting.popleft()[1].result()
            waiting.append((weight, pool.submit(copy_context().run, work, item)))
        while waiting:
            yield waiting.popleft()[1].result()
    finally:
        pool.shutdown(cancel_futures=True)


def _expected(waiting: Iterable[tuple[int, Future[R]]]) -> int:
    """Sum the expected bytes of the unfinished items."""
    return sum(weight for weight, future in waiting if not future.done())
