"""Stored tensors, with dtype, shape and bytes; safetensors files; and names without the wrappers of training.

FSDP, activation checkpointing, torch.compile, Fabric and Opacus leave them: `layers.0._orig_mod.proj.weight`.
"""

import re
import struct
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar
from urllib.parse import quote

import torch
from torch import Tensor

from merganser.errors import InputError, refusing
from merganser.hashes import ReadDigest
from merganser.limits import check_file, parse_json

DTYPES: dict[str, torch.dtype] = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U64": torch.uint64,
    "U32": torch.uint32,
    "U16": torch.uint16,
    "U8": torch.uint8,
    "BOOL": torch.bool,
    "C64": torch.complex64,
}
NAMES_OF_DTYPES = {dtype: name for name, dtype in DTYPES.items()}


@dataclass(frozen=True)
class Spec:
    """A tensor's dtype (as safetensors spells it) and shape."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Return the size in bytes."""
        return prod(self.shape) * DTYPES[self.dtype].itemsize


@dataclass(frozen=True)
class Rows:
    """Some rows of a tensor: of its first dimension, from `start` to before `stop`, of so many."""

    name: str
    start: int
    stop: int
    of: int

    def __str__(self) -> str:
        return f"{self.name}[{self.start}:{self.stop}]"

    def spec(self, whole: Spec) -> Spec:
        """Return the rows' dtype and shape, given the whole tensor's.

        >>> Rows("proj", 2, 5, 8).spec(Spec("F32", (8, 6)))
        Spec(dtype='F32', shape=(3, 6))
        """
        return Spec(whole.dtype, (self.stop - self.start, *whole.shape[1:]))

    def first(self, whole: Spec) -> int:
        """Return the number of values before these rows in the whole tensor.

        >>> Rows("proj", 2, 5, 8).first(Spec("F32", (8, 6)))
        12
        """
        return self.start * prod(whole.shape[1:])


Part = str | Rows  # of a checkpoint: a tensor, or some rows of one
IN_MODULE = "//"  # after the name of a folder beside the model's own files, where a tensor lies in one
NUMBER = re.compile(r"\[\d+\]$")  # ends the name of one matrix of a stack


def tensor_name(part: Part) -> str:
    """Return a tensor's name, or the name of the tensor that has the rows."""
    return part if isinstance(part, str) else part.name


def name_in_file(name: str) -> str:
    """Return a tensor's name inside its file.

    >>> name_in_file("2_Dense//linear.weight"), name_in_file("proj.weight")
    ('linear.weight', 'proj.weight')
    """
    return name.rpartition(IN_MODULE)[2]


def matrix_name(stack: str, number: int) -> str:
    """Return the name of one matrix of a stack."""
    return f"{stack}[{number}]"


def parameter_of(name: str) -> str:
    """Return a name's parameter, which is the stack for one of its matrices.

    >>> parameter_of("mlp.experts.down_proj[3]")
    'mlp.experts.down_proj'
    """
    return NUMBER.sub("", name)


def spec_of(tensor: Tensor) -> Spec:
    """Describe a tensor."""
    return Spec(NAMES_OF_DTYPES[tensor.dtype], tuple(tensor.shape))


def to_bytes(tensor: Tensor) -> memoryview:
    """View a tensor's values as bytes without copying, if it is contiguous and on the CPU."""
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data


class Checkpoint(ABC):
    """Named tensors, read one at a time; names, shapes and dtypes are known without reading values."""

    transposed: frozenset[str] = frozenset()  # the names of those that are shown with rows and columns swapped
    dropped: Mapping[str, str | None] = MappingProxyType({})  # left out: a second name of another, or a constant

    @property
    @abstractmethod
    def specs(self) -> Mapping[str, Spec]:
        """Return each tensor's dtype and shape, by its name."""

    @property
    def names(self) -> tuple[str, ...]:
        """Return the tensors' names, sorted."""
        return tuple(sorted(self.specs))

    def __contains__(self, name: str) -> bool:
        return name in self.specs

    def spec(self, name: str) -> Spec:
        """Return one tensor's dtype and shape."""
        return self.specs[name]

    @abstractmethod
    def read(self, name: str) -> Tensor:
        """Read one tensor."""

    def read_rows(self, rows: Rows) -> Tensor:
        """Read some rows of a tensor."""
        return self.read(rows.name)[rows.start : rows.stop]


class StoredCheckpoint(Checkpoint):
    """A checkpoint in the layout of its files."""

    def read(self, name: str) -> Tensor:
        return self.read_piece(name, 0, self.specs[name].shape)

    def read_rows(self, rows: Rows) -> Tensor:
        """Read only some rows of a tensor."""
        whole = self.specs[rows.name]
        return self.read_piece(rows.name, rows.first(whole), rows.spec(whole).shape)

    @abstractmethod
    def read_piece(self, name: str, start: int, shape: tuple[int, ...]) -> Tensor:
        """Read a tensor of this shape from a flat stored one, from the value at `start` on."""

    def memory(self, name: str) -> object:
        """Return a key of the tensor's memory, equal for tensors that share it; None if none do."""
        return None


class FileCheckpoint(StoredCheckpoint):
    """A checkpoint in one file. `wrappers`: training wrappers that were removed from its names."""

    path: Path
    wrappers: frozenset[str] = frozenset()


Value = TypeVar("Value")

# The names of private attributes, which no model has itself. `module`, that of DDP, some do: `matching` tries without,
# and only before what PEFT puts before a model's names it is none of the model's.
WRAPPER = re.compile(
    r"(?<![^.])(_fsdp_wrapped_module|_fpw_module|_checkpoint_wrapped_module|_orig_mod|_forward_module|_module"
    r"|module(?=\.base_model\.model\.))\."
)
FLAT = re.compile(r"(.+\.)?_?flat_param(_\d+)?")  # the parameters of a module as FSDP holds them
SHARDED = (
    "parameters flattened by FSDP, without their shapes; save the model with "
    "StateDictType.FULL_STATE_DICT (accelerate: fsdp_state_dict_type: FULL_STATE_DICT)"
)


def unwrapped(named: Mapping[str, Value], path: Path) -> dict[str, Value]:
    """Rename a checkpoint's tensors by removing training wrappers from their names.

    Raises InputError if two names become equal, and for flattened parameters.

    >>> unwrapped({"_orig_mod.layers.0._checkpoint_wrapped_module.weight": 1}, Path("model.safetensors"))
    {'layers.0.weight': 1}
    """
    plain_named: dict[str, Value] = {}
    for name, value in named.items():
        if not isinstance(name, str):
            return dict(named)
        if "flat_param" in name and FLAT.fullmatch(name):
            raise InputError(f"{path}: {name}: {SHARDED}")
        plain = WRAPPER.sub("", name)
        if plain in plain_named:
            wrapper = next(iter(wrappers_in(each for each in named if WRAPPER.sub("", each) == plain)))
            both = f"{plain} is there twice, once with {wrapper}, a wrapper of training, in its name"
            raise InputError(f"{path}: {both}; save the state_dict of the model without it")
        plain_named[plain] = value
    return plain_named


def wrappers_in(names: Iterable[str]) -> frozenset[str]:
    """Return the training wrappers in some names.

    >>> wrappers_in(["_orig_mod.a.weight", "b.weight"])
    frozenset({'_orig_mod'})
    """
    return frozenset(wrapper for name in names for wrapper in WRAPPER.findall(name))


HEADER_LIMIT = 2**25  # bytes: of names, shapes and places, for a file of 250,000 tensors
NAME_LIMIT = 200  # characters, as a file's name would have them: a parameter's factors have a file of its name
LFS_POINTER = b"version https://git-lfs"  # what a clone without git-lfs has in a large file's place
GGUF = b"GGUF"
METADATA = "__metadata__"  # in a header beside the tensors
DIMENSIONS, ENTRIES = 16, 2**48  # of a tensor, at most: numbers beyond make torch itself fail


class SafetensorsFile(FileCheckpoint):
    """One safetensors file, opened by its header. Tensors are read, since pages of a mapped file count as memory."""

    def __init__(self, path: Path) -> None:
        header, self._start = read_header(path)
        self.path = path
        self.digest: ReadDigest | None = None  # of the file, from all that is read of it
        self.metadata: dict[str, str] = header.pop(METADATA, {})
        self.wrappers, header = wrappers_in(header), unwrapped(header, path)
        self._specs = {name: Spec(entry["dtype"], tuple(entry["shape"])) for name, entry in header.items()}
        self._offsets = {name: entry["data_offsets"][0] for name, entry in header.items()}

    @property
    def specs(self) -> dict[str, Spec]:
        return self._specs

    def read_piece(self, name: str, start: int, shape: tuple[int, ...]) -> Tensor:
        values = torch.empty(shape, dtype=DTYPES[self.specs[name].dtype])
        self.fill(values, name, start)
        return values

    def fill(self, values: Tensor, name: str, start: int = 0) -> None:
        """Read a stored tensor into a contiguous one of its dtype, from the value at `start` on."""
        with self.path.open("rb", buffering=0) as file:
            begin = self._start + self._offsets[name] + start * values.itemsize
            file.seek(begin)
            read = left = to_bytes(values)
            while len(left):  # one read gives 2 GiB at most
                count = file.readinto(left)
                if not count:
                    raise InputError(f"{self.path}: ends within {name}; fetch it again")
                left = left[count:]
        if self.digest:
            self.digest.take(begin, read)

    def read_in_order(self) -> bool:
        """Tell whether the tensors are stored in the order of their names, in which a merge reads them."""
        return sorted(self._offsets, key=lambda name: self._offsets[name]) == sorted(self._offsets)


def read_header(path: Path) -> tuple[dict[str, Any], int]:
    """Read and check a safetensors header; return it and the values' position. Raises InputError for a cut file."""
    check_file(path)
    size = path.stat().st_size
    with path.open("rb") as file:
        if file.read(len(LFS_POINTER)) == LFS_POINTER:
            raise InputError(f"{path}: a pointer of git-lfs, not the file itself; run `git lfs pull` in its repository")
        file.seek(0)
        if file.read(len(GGUF)) == GGUF:
            raise InputError(
                f"{path}: a GGUF file, of llama.cpp; give the model it was made from, or a copy in safetensors: "
                f"merganser merge average --model copy={path} --out DIR writes one, dequantised"
            )
        file.seek(0)
        length = struct.unpack("<Q", file.read(8))[0] if size >= 8 else 0
        if not 2 <= length <= min(HEADER_LIMIT, size - 8):
            raise InputError(f"{path}: not a safetensors file, or cut off within its header; fetch it again")
        with refusing(f"{path}: the safetensors header is corrupt", "fetch it again"):
            header = parse_json(file.read(length))
            _refuse_quantised(path, header)
            end = _checked_end(header)
    expected = 8 + length + end
    if size != expected:
        raise InputError(f"{path}: truncated or corrupt: {size} bytes, its header announces {expected}; fetch it again")
    return header, 8 + length


def _refuse_quantised(path: Path, header: dict[str, Any]) -> None:
    for name, entry in header.items():
        if str(entry.get("dtype")).startswith(("F8_", "F6_", "F4")):
            raise InputError(
                f"{path}: {name} is quantised, stored as {entry['dtype']}; take the model it was made from"
            )


def _checked_end(header: dict[str, Any]) -> int:
    """Check a header's entries, and that the tensors are adjacent; return the end of the last one."""
    metadata = header.get(METADATA, {})
    if not all(isinstance(text, str) for text in metadata.values()):
        raise ValueError("its metadata is not a map of texts")
    end = 0
    for start, stop, name in sorted(_checked_span(*item) for item in header.items() if item[0] != METADATA):
        if start != end:
            raise ValueError(f"{name} begins at {start}, where {end} is due: tensors neither overlap nor leave gaps")
        end = stop
    return end


def check_name_and_shape(name: str, shape: Sequence[int]) -> None:
    """Raise ValueError for an impossible tensor name or shape."""
    if not name.isprintable() or name == METADATA or not 0 < len(quote(name, safe="")) <= NAME_LIMIT:
        raise ValueError(f"{name[:NAME_LIMIT]!r} is not a name for a tensor")
    if len(shape) > DIMENSIONS or prod(max(n, 1) for n in shape) > ENTRIES:
        raise ValueError(f"{name} has a shape that no tensor has")


def _checked_span(name: str, entry: dict[str, Any]) -> tuple[int, int, str]:
    (start, end), shape = entry["data_offsets"], entry["shape"]
    if entry["dtype"] not in DTYPES:
        raise ValueError(f"{name} has the unsupported dtype {entry['dtype']}")
    if any(type(n) is not int or n < 0 for n in (start, end, *shape)):
        raise ValueError(f"{name} has a shape or offset that is not a count")
    check_name_and_shape(name, shape)
    if end - start != Spec(entry["dtype"], tuple(shape)).nbytes:
        raise ValueError(f"{name} has {end - start} bytes for shape {shape} of {entry['dtype']}")
    return start, end, name
