"""What describes a stored tensor: its dtype as safetensors spells it, its shape, its bytes."""

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from types import MappingProxyType

import torch
from torch import Tensor

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
    """Some rows of a tensor: those of its first dimension from `start` to before `stop`, of so many."""

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
        """Return how many values of the whole tensor come before these rows.

        >>> Rows("proj", 2, 5, 8).first(Spec("F32", (8, 6)))
        12
        """
        return self.start * prod(whole.shape[1:])


Part = str | Rows  # of a checkpoint: a tensor, or some rows of one
IN_MODULE = "//"  # after the name of a folder beside the model's own files, where a tensor lies in one
NUMBER = re.compile(r"\[\d+\]$")  # ends the name of one matrix of a stack


def tensor_name(part: Part) -> str:
    """Return the name of the tensor that is meant, or of which some rows are."""
    return part if isinstance(part, str) else part.name


def name_in_file(name: str) -> str:
    """Return what a tensor is called in its file.

    >>> name_in_file("2_Dense//linear.weight"), name_in_file("proj.weight")
    ('linear.weight', 'proj.weight')
    """
    return name.rpartition(IN_MODULE)[2]


def matrix_name(stack: str, number: int) -> str:
    """Name one matrix of a stack."""
    return f"{stack}[{number}]"


def parameter_of(name: str) -> str:
    """Return the parameter that a name is of, which is the stack for one of its matrices.

    >>> parameter_of("mlp.experts.down_proj[3]")
    'mlp.experts.down_proj'
    """
    return NUMBER.sub("", name)


def spec_of(tensor: Tensor) -> Spec:
    """Describe a tensor."""
    return Spec(NAMES_OF_DTYPES[tensor.dtype], tuple(tensor.shape))


def to_bytes(tensor: Tensor) -> memoryview:
    """View a tensor's values as bytes: its own memory, where it is contiguous and on the CPU."""
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data


class Checkpoint(ABC):
    """Named tensors, read one at a time; names, shapes and dtypes are known without reading them."""

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
    """A checkpoint as its files have it."""

    def read(self, name: str) -> Tensor:
        """Read one tensor."""
        return self.read_piece(name, 0, self.specs[name].shape)

    def read_rows(self, rows: Rows) -> Tensor:
        """Read some rows of a tensor, and no others."""
        whole = self.specs[rows.name]
        return self.read_piece(rows.name, rows.first(whole), rows.spec(whole).shape)

    @abstractmethod
    def read_piece(self, name: str, start: int, shape: tuple[int, ...]) -> Tensor:
        """Read a tensor of this shape out of one stored flat, from the value at `start` on."""

    def memory(self, name: str) -> object:
        """Return what tells the memory of one tensor from that of others; None where each has its own."""
        return None
