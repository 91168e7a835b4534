"""Torch weights, loaded with `weights_only`: a state dict, or a training checkpoint that contains one.

Its pickles are scanned before: even with `weights_only` they may take any memory and time.
"""

import pickletools
import re
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from io import BytesIO
from math import prod
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor

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
        return {name: spec_of(tensor) for name, tensor in self.tensors.items()}

    def read(self, name: str) -> Tensor:
        return self.tensors[name]

    def read_piece(self, name: str, start: int, shape: tuple[int, ...]) -> Tensor:
        return self.tensors[name].flatten()[start : start + prod(shape)].view(shape)

    def memory(self, name: str) -> object:
        """Return a tensor's memory and layout; equal for two names of one tied weight."""
        tensor = self.tensors[name]
        return (tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride()) if tensor.numel() else None


def open_torch(path: Path) -> TorchCheckpoint:
    """Open torch weights as plain tensors; raise InputError for anything else in the file."""
    check_file(path)
    _check_pickles(path)
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


LEGACY = 5  # pickles that a file from before torch 1.6 begins with
# What makes memory of any length: a bytearray, and torch's constructors of tensors without values.
GROWING = re.compile(rb"bytearray|ctorch(\.\w+)*\n\w*Tensor\n")
TUPLES = ("TUPLE", "TUPLE1", "TUPLE2", "TUPLE3")
MOST = 10_000  # values in a tuple with the tuples in it: hashing one, as a key, takes a step for each


def _check_pickles(path: Path) -> None:
    """Refuse a file that takes more memory or time than its bytes explain; raise InputError."""
    refused = refusing(f"{path}: cannot be loaded as plain weights", "convert it to safetensors", Exception)
    with refused, path.open("rb") as file:
        if file.read(4) == b"PK\3\4" or zipfile.is_zipfile(path):
            for record in _records(file):
                _check_growing(record)
                _check_tuples(BytesIO(record))
        elif path.stat().st_size:
            with mmap(file.fileno(), 0, access=ACCESS_READ) as whole:
                _check_growing(whole)
                is_pickled = whole[:1] == b"\x80"
            file.seek(0)
            for _ in range(LEGACY if is_pickled else 0):
                _check_tuples(file)


def _records(file: IO[bytes]) -> Iterator[bytes]:
    with zipfile.ZipFile(file) as archive:
        records = archive.infolist()
        if any(record.compress_type != zipfile.ZIP_STORED for record in records):
            raise ValueError("its records are compressed, and torch compresses none")
        for record in records:
            if record.filename.lower().endswith(".pkl"):
                yield archive.read(record)


def _check_growing(content: bytes | mmap) -> None:
    if (match := GROWING.search(content)) is not None:
        raise ValueError(f"it makes a {match[0].decode().split()[-1]} of any length, without values in the file")


def _check_tuples(file: IO[bytes]) -> None:
    """Refuse tuples that contain one another many times, by simulating the pickle machine's stack."""
    stack, marks, memo = list[int](), list[int](), dict[int, int]()
    argument: Any
    for code, argument, _ in pickletools.genops(file):
        if code.name in ("BINPUT", "LONG_BINPUT"):
            memo[argument] = stack[-1]
        elif code.name in ("BINGET", "LONG_BINGET"):
            stack.append(memo[argument])
        elif code.name == "MARK":
            marks.append(len(stack))
        else:
            taken = _pop(stack, marks, code)
            count = 1 + sum(taken) if code.name in TUPLES else 1
            if count > MOST:
                raise ValueError(f"it has a tuple of more than {MOST:,} values")
            stack += [count] * len(code.stack_after)


def _pop(stack: list[int], marks: list[int], code: pickletools.OpcodeInfo) -> list[int]:
    """Pop the arguments of an opcode: some values, or some and all after the last mark."""
    some = len(code.stack_before)
    # the mark, and what is behind it, are two of them
    start = marks.pop() + 2 - some if pickletools.stackslice in code.stack_before else len(stack) - some
    taken = stack[start:]
    del stack[start:]
    return taken
