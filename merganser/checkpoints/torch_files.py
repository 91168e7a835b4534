"""Torch weights, loaded with `weights_only`: a state dict, or a training checkpoint that contains one."""

import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from merganser.checkpoints.pickles import check_pickles
from merganser.checkpoints.tensors import (
    NAMES_OF_DTYPES,
    FileCheckpoint,
    Spec,
    check_name_and_shape,
    spec_of,
    unwrapped,
    wrappers_in,
)
from merganser.errors import InputError, refusing
from merganser.limits import EXPANDED, SPARE, check_file

WRAPPERS = ("state_dict", "model_state_dict", "model", "module")  # what training loops save parameters under


@dataclass(frozen=True)
class TorchCheckpoint(FileCheckpoint):
    """Torch weights, memory-mapped."""

    path: Path
    tensors: Mapping[str, Tensor]
    wrappers: frozenset[str] = frozenset()  # of training, that were in the names

    @cached_property
    def specs(self) -> dict[str, Spec]:
        """Return each tensor's dtype and shape, by its name."""
        return {name: spec_of(tensor) for name, tensor in self.tensors.items()}

    def read(self, name: str) -> Tensor:
        """Read one tensor."""
        return self.tensors[name]

    def read_piece(self, name: str, start: int, shape: tuple[int, ...]) -> Tensor:
        """Read a tensor of this shape from a flat one, from the value at `start` on."""
        return self.tensors[name].flatten()[start : start + prod(shape)].view(shape)

    def memory(self, name: str) -> object:
        """Return a tensor's memory and layout; equal for two names of one tied weight."""
        tensor = self.tensors[name]
        return (tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride()) if tensor.numel() else None


def open_torch(path: Path) -> TorchCheckpoint:
    """Open torch weights as plain tensors; raise InputError for anything else in the file."""
    check_file(path)
    check_pickles(path)
    try:
        # what torch before 1.6 wrote is no archive, and is read whole
        loaded = torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
    except Exception as error:  # torch raises a dozen kinds, all of them mean the same to a user
        with path.open("rb") as file:
            head = file.read(16)
        if not head.startswith((b"PK", b"\x80")):  # neither an archive nor a pickle
            raise InputError(
                f"{path}: not a file written by torch: it begins with {head!r}; download it again"
            ) from error
        raise InputError(
            f"{path}: cannot be loaded as plain weights ({type(error).__name__}); convert it to safetensors"
        ) from error
    with refusing(f"{path}: cannot be loaded as plain weights", "convert it to safetensors"):
        tensors = _parameters(loaded, path)
    float8 = [name for name, value in tensors.items() if "float8" in str(value.dtype)]
    if float8:
        stored = f"stored as {tensors[float8[0]].dtype}; take the model it was made from"
        raise InputError(f"{path}: {float8[0]} is quantised, {stored}")
    strange = [name for name, value in tensors.items() if not _is_plain(name, value)]
    if strange:
        raise InputError(f"{path}: {strange[0]!r} is not a plain tensor under a name; save the model's state_dict")
    with refusing(f"{path}: cannot be loaded as plain weights", "save the model's state_dict"):
        for name, value in tensors.items():
            check_name_and_shape(name, value.shape)
        if sum(value.nbytes for value in tensors.values()) > EXPANDED * path.stat().st_size + SPARE:
            raise ValueError("its tensors are views of a few values, many times as large as the file")
    return TorchCheckpoint(path, unwrapped(tensors, path), wrappers_in(tensors))


def _parameters(loaded: Any, path: Path) -> dict[Any, Tensor]:
    """Return the tensors of a state dict, or of a training checkpoint that contains one."""
    whole = loaded if isinstance(loaded, dict) else {}
    under = next((key for key in WRAPPERS if isinstance(whole.get(key), dict)), None)
    tensors = _tensors(whole if under is None else whole[under])
    if not tensors:
        raise InputError(f"{path}: holds no named tensors; save the model's state_dict")
    again = [
        key
        for key, value in whole.items()
        if under and key != under and any(_is_another(tensors, each) for each in _sets(value))
    ]
    if again:
        both = f"holds the parameters under {under!r} and under {again[0]!r}, as of a running average"
        raise InputError(f"{path}: {both}; save the state_dict that you want in a separate file")
    return tensors


def _tensors(named: Mapping[Any, Any]) -> dict[Any, Tensor]:
    return {name: value for name, value in named.items() if isinstance(value, Tensor)}


def _sets(value: Any) -> list[Any]:
    """Return possible state dicts: a value, and the values inside it, as in a running average with its settings."""
    return [value, *(value.get(key) for key in WRAPPERS)] if isinstance(value, dict) else []


def _is_another(tensors: Mapping[Any, Tensor], value: Any) -> bool:
    """Tell whether a value has all tensors by name and shape, with or without `module.`, and other values."""
    if not isinstance(value, dict):
        return False
    others = {str(name).removeprefix("module."): tensor for name, tensor in _tensors(value).items()}
    pairs = [(tensor, others.get(str(name).removeprefix("module."))) for name, tensor in tensors.items()]
    if any(other is None or other.shape != tensor.shape for tensor, other in pairs):
        return False
    return not all(torch.equal(tensor, other) for tensor, other in pairs if other is not None)


def _is_plain(name: Any, tensor: Tensor) -> bool:
    """Tell whether safetensors could store a tensor, and it is no view of fewer values than its shape."""
    if not isinstance(name, str) or tensor.layout is not torch.strided or tensor.dtype not in NAMES_OF_DTYPES:
        return False
    held = tensor.device.type == "cpu" and tensor.untyped_storage().nbytes() >= tensor.numel() * tensor.itemsize
    return held and not (tensor.is_quantized or tensor.is_neg() or tensor.is_conj())
