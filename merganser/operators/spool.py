"""A temporary store on disk for tensors that a later pass over the layers reads."""

import os
from collections.abc import Iterator
from errno import EDQUOT, ENOSPC
from math import prod
from tempfile import TemporaryFile
from threading import Lock
from typing import NamedTuple
from weakref import finalize

import torch
from torch import Tensor

from merganser.errors import InputError

LARGE_FILES = "/var/tmp"  # on disk, where many systems keep /tmp in memory


class StoredTensor(NamedTuple):
    """The place of a tensor's bytes in the file, and how to read them."""

    offset: int
    shape: torch.Size
    dtype: torch.dtype
    device: torch.device


class Spool:
    """Tensors by name in an unnamed temporary file, which the system deletes with the spool or the process.

    The file is in $TMPDIR if that is set, otherwise in /var/tmp or the system's temporary folder. Threads may put and
    get at the same time.
    """

    def __init__(self) -> None:
        folder = LARGE_FILES if "TMPDIR" not in os.environ and os.access(LARGE_FILES, os.W_OK) else None
        # Unbuffered: otherwise closing the file would retry the write that a full disk refused.
        self._file = TemporaryFile(buffering=0, dir=folder)  # noqa: SIM115 (closed by finalize)
        self._stored: dict[str, StoredTensor] = {}
        self._size, self._lock = 0, Lock()
        finalize(self, self._file.close)

    def put(self, name: str, tensor: Tensor) -> None:
        """Write a tensor. Raises InputError when the disk is full."""
        self._put(name, iter([tensor]), 1, ())

    def put_stack(self, name: str, parts: Iterator[Tensor], count: int) -> None:
        """Write `count` tensors of one shape as the iterator yields them; `get` returns them as one (count, ...)."""
        self._put(name, parts, count, (count,))

    def _put(self, name: str, parts: Iterator[Tensor], count: int, leading: tuple[int, ...]) -> None:
        assert name not in self._stored
        for number, part in enumerate(parts):
            data = part.cpu().contiguous().flatten().view(torch.uint8).numpy().data
            if number == 0:
                with self._lock:
                    start, self._size = self._size, self._size + count * len(data)
                stored = StoredTensor(start, torch.Size([*leading, *part.shape]), part.dtype, part.device)
            self._write(data, start + number * len(data))
            del part, data  # free the memory before the next is computed
        self._stored[name] = stored

    def _write(self, left: memoryview, offset: int) -> None:
        try:
            while len(left):
                written = os.pwrite(self._file.fileno(), left, offset)
                left, offset = left[written:], offset + written
        except OSError as error:
            if error.errno not in (ENOSPC, EDQUOT):
                raise
            raise InputError(
                "no space left for temporary files: set TMPDIR to a folder with space for the tasks' models"
            ) from error

    def get(self, name: str) -> Tensor:
        """Read a tensor back, to the device it was on."""
        offset, shape, dtype, device = self._stored[name]
        read = torch.empty(prod(shape) * dtype.itemsize, dtype=torch.uint8)
        left = read.numpy().data
        while len(left):
            count = os.preadv(self._file.fileno(), [left], offset)
            left, offset = left[count:], offset + count
        return read.view(dtype).view(shape).to(device)

    def shape(self, name: str) -> torch.Size:
        """Return the shape of a tensor."""
        return self._stored[name].shape

    def __contains__(self, name: str) -> bool:
        return name in self._stored
