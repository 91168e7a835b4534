"""Tensors set aside on disk from one pass over the layers to the next."""

import os
from errno import EDQUOT, ENOSPC
from math import prod
from tempfile import TemporaryFile
from typing import NamedTuple
from weakref import finalize

import torch
from torch import Tensor

from merganser.errors import InputError

ROOMY = "/var/tmp"  # a disk where /tmp is memory, as on many systems


class Place(NamedTuple):
    """Where a tensor lies in the file, and what makes a tensor of its bytes."""

    offset: int
    shape: torch.Size
    dtype: torch.dtype
    device: torch.device


class Spool:
    """Tensors by name, in a file without a name: it is gone with the spool or the process, however that ends.

    The file is in $TMPDIR if that is set, otherwise in /var/tmp or where the system keeps temporary files.
    """

    def __init__(self) -> None:
        roomy = "TMPDIR" not in os.environ and os.access(ROOMY, os.W_OK)
        # Without a buffer: what a full disk refused is not tried again when the file is closed.
        self._file = TemporaryFile(buffering=0, dir=ROOMY if roomy else None)  # noqa: SIM115 (closed by finalize)
        self._places: dict[str, Place] = {}
        finalize(self, self._file.close)

    def put(self, name: str, tensor: Tensor) -> None:
        """Write a tensor. Raises InputError when the disk is full."""
        assert name not in self._places
        offset = self._file.seek(0, os.SEEK_END)
        left = tensor.cpu().contiguous().flatten().view(torch.uint8).numpy().data
        try:
            while len(left):
                left = left[self._file.write(left) :]
        except OSError as error:
            if error.errno not in (ENOSPC, EDQUOT):
                raise
            raise InputError(
                "no space left for temporary files: set TMPDIR to a folder with room for the tasks' models"
            ) from error
        self._places[name] = Place(offset, tensor.shape, tensor.dtype, tensor.device)

    def get(self, name: str) -> Tensor:
        """Read a tensor back, to the device it was on."""
        offset, shape, dtype, device = self._places[name]
        read = torch.empty(prod(shape) * dtype.itemsize, dtype=torch.uint8)
        self._file.seek(offset)
        left = read.numpy().data
        while len(left):
            left = left[self._file.readinto(left) :]
        return read.view(dtype).view(shape).to(device)

    def __contains__(self, name: str) -> bool:
        return name in self._places
