"""Parts: what one task adds to one parameter of the shared model, in the form that is stored.

A part is a frozen dataclass of tensors, with a kind, that computes the delta it encodes. Masks have one bit per entry.
Legend: M rows, N columns, n entries, K singular triples, k of them kept.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from math import prod
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import pad

from merganser.checkpoints.tensors import Spec
from merganser.inputs.layers import LayerFactors
from merganser.linalg.decompositions import Factors
from merganser.linalg.svd import leading, rebuilt

BITS = 8


def pack_bits(values: Tensor, width: int = 1) -> Tensor:
    """Pack numbers of `width` bits, booleans by default, from the lowest bits on; zeros fill the last byte."""
    flat, count = values.flatten().to(torch.uint8), BITS // width
    groups = pad(flat, (0, -len(flat) % count)).view(-1, count)
    packed = groups[:, 0].clone()
    for place in range(1, count):
        packed |= groups[:, place] << width * place
    return packed


def unpack_bits(packed: Tensor, count: int, width: int = 1) -> Tensor:
    """Unpack the first `count` numbers of `width` bits; booleans by default."""
    places = torch.arange(0, BITS, width, dtype=torch.uint8, device=packed.device)
    numbers = (packed.unsqueeze(1) >> places & (1 << width) - 1).flatten()[:count]
    return numbers.bool() if width == 1 else numbers


def bytes_of(count: int, width: int = 1) -> int:
    """Return the number of bytes that hold `count` numbers of `width` bits."""
    return -(-count * width // BITS)


@dataclass(frozen=True)
class Part(ABC):
    """What one task adds to one parameter."""

    kind: ClassVar[str]
    factored: ClassVar[bool] = False  # encodes an M x N matrix by its factors, not n entries

    @property
    def count(self) -> int:
        """Return the number on which the part's size depends, triples or entries kept; 0 if all sizes are equal."""
        return 0

    @staticmethod
    @abstractmethod
    def specs(dims: tuple[int, ...], count: int, dtype: str) -> dict[str, Spec]:
        """Return the shapes and dtypes of a part's tensors, from its dimensions (M, N) or (n,), its count and dtype."""

    @abstractmethod
    def delta(self, shape: tuple[int, ...], unified: Tensor | None = None) -> Tensor:
        """Return the delta of a parameter of this shape, in float32.

        `unified` is the tasks' shared delta, for parts that only modulate it. Raises ValueError if the tensors
        contradict each other.
        """


@dataclass(frozen=True)
class Dense(Part):
    """A delta stored whole."""

    kind: ClassVar[str] = "dense"
    values: Tensor

    @staticmethod
    def specs(dims: tuple[int, ...], count: int, dtype: str) -> dict[str, Spec]:
        return {"values": Spec(dtype, dims)}

    def delta(self, shape: tuple[int, ...], unified: Tensor | None = None) -> Tensor:
        return self.values.float().reshape(shape)


@dataclass(frozen=True)
class LowRank(Part):
    """A delta stored as U diag(S) Vh, the singular values separately, in float32."""

    kind: ClassVar[str] = "low_rank"
    factored: ClassVar[bool] = True
    u: Tensor  # (M, K)
    s: Tensor  # (K,)
    vh: Tensor  # (K, N)

    @property
    def count(self) -> int:
        return len(self.s)

    @staticmethod
    def specs(dims: tuple[int, ...], count: int, dtype: str) -> dict[str, Spec]:
        """Describe the factors; `dtype` is that of the vectors."""
        rows, columns = dims
        return {"u": Spec(dtype, (rows, count)), "s": Spec("F32", (count,)), "vh": Spec(dtype, (count, columns))}

    def delta(self, shape: tuple[int, ...], unified: Tensor | None = None) -> Tensor:
        """Multiply the factors out, in float64: the float32 result does not depend on the number of threads."""
        return ((self.u.double() * self.s.double()) @ self.vh.double()).float().reshape(shape)


@dataclass(frozen=True)
class Parts:
    """What a method with parts per task returns for one layer.

    A task's own delta is that of its part. If `mixtures` names the task, it is the weighted sum of other tasks' parts.
    """

    tasks: Mapping[str, Part] = field(default_factory=dict)
    unified: Tensor | None = None  # a delta that the tasks' parts modulate, stored once
    mixtures: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # the same for every layer


def mixed(deltas: Iterable[tuple[float, Tensor]], shape: tuple[int, ...]) -> Tensor:
    """Return the weighted sum of deltas, summed in float64, as float32."""
    summed: Tensor | None = None
    for weight, delta in deltas:
        summed = weight * delta.double() if summed is None else summed.add_(delta, alpha=weight)
    return torch.zeros(shape) if summed is None else summed.float()


def tensors_of(part: Part) -> dict[str, Tensor]:
    """Return a part's tensors by field name."""
    return {f.name: getattr(part, f.name) for f in fields(part)}


def low_rank_parts(layer: LayerFactors, count: int) -> Parts:
    """Keep `count` singular triples of each task; if that is 0, the whole matrix, like a vector.

    The vectors keep the dtype of the factor cache, which loses nothing. A task that does not change the matrix stores
    nothing.
    """
    kept = truncated(layer, count)
    return Parts({task: _part(f, layer.stored) if count else Dense(rebuilt(f)) for task, f in kept.items()})


def truncated(layer: LayerFactors, count: int) -> dict[str, Factors]:
    """Return `count` triples of each task, all if that is 0, up to its numerical rank; no task that has none."""
    kept = {task: leading(f, count or len(f.s)) for task, f in zip(layer.tasks, layer.factors, strict=True)}
    return {task: factors for task, factors in kept.items() if len(factors.s)}


def _part(factors: Factors, stored: torch.dtype) -> Part:
    u, s, vh = (tensor.contiguous() for tensor in factors)
    return LowRank(u.to(stored), s.to(torch.float32), vh.to(stored))


@dataclass(frozen=True)
class Masked(Part):
    """The shared delta where the task's mask is set, times the task's scale."""

    kind: ClassVar[str] = "masked"
    mask: Tensor  # n packed bits
    scale: Tensor  # ()

    @staticmethod
    def specs(dims: tuple[int, ...], count: int, dtype: str) -> dict[str, Spec]:
        return {"mask": Spec("U8", (bytes_of(dims[0]),)), "scale": Spec(dtype, ())}

    def delta(self, shape: tuple[int, ...], unified: Tensor | None = None) -> Tensor:
        if unified is None:
            raise ValueError("it masks a shared delta, which is missing")
        return self.scale.float() * torch.where(unpack_bits(self.mask, prod(shape)).reshape(shape), unified, 0)


@dataclass(frozen=True)
class Sparse(Part):
    """The values of some entries; the others are those of the shared delta, or zero if there is none."""

    kind: ClassVar[str] = "sparse"
    mask: Tensor  # n packed bits
    values: Tensor  # (k,)

    @property
    def count(self) -> int:
        return len(self.values)

    @staticmethod
    def specs(dims: tuple[int, ...], count: int, dtype: str) -> dict[str, Spec]:
        return {"mask": Spec("U8", (bytes_of(dims[0]),)), "values": Spec(dtype, (count,))}

    def delta(self, shape: tuple[int, ...], unified: Tensor | None = None) -> Tensor:
        kept = unpack_bits(self.mask, prod(shape))
        if (count := int(kept.sum())) != len(self.values):
            raise ValueError(f"its mask keeps {count} entries, but it has {len(self.values)} values")
        values = torch.zeros(prod(shape)) if unified is None else unified.flatten().clone()
        values[kept] = self.values.float()
        return values.reshape(shape)


@dataclass(frozen=True)
class Signs(Part):
    """The signs of some entries, with one scale for the positive and one for the negative; the others are 0."""

    kind: ClassVar[str] = "signs"
    mask: Tensor  # n packed bits: kept?
    negative: Tensor  # k packed bits, of the kept entries only
    scales: Tensor  # (2,): of the positive, of the negative (signed)

    @property
    def count(self) -> int:
        return int(unpack_bits(self.mask, 8 * len(self.mask)).sum())

    @staticmethod
    def specs(dims: tuple[int, ...], count: int, dtype: str) -> dict[str, Spec]:
        bits = {"mask": Spec("U8", (bytes_of(dims[0]),)), "negative": Spec("U8", (bytes_of(count),))}
        return bits | {"scales": Spec(dtype, (2,))}

    def delta(self, shape: tuple[int, ...], unified: Tensor | None = None) -> Tensor:
        kept = unpack_bits(self.mask, prod(shape))
        count = int(kept.sum())
        if bytes_of(count) != len(self.negative):
            raise ValueError(f"its mask keeps {count} entries, but it has {len(self.negative)} bytes of signs")
        values = torch.zeros(prod(shape))
        values[kept] = self.scales.float()[unpack_bits(self.negative, count).long()]
        return values.reshape(shape)


@dataclass(frozen=True)
class Binary(Part):
    """The sign of every entry, times one magnitude."""

    kind: ClassVar[str] = "binary"
    negative: Tensor  # n packed bits
    scale: Tensor  # ()

    @staticmethod
    def specs(dims: tuple[int, ...], count: int, dtype: str) -> dict[str, Spec]:
        return {"negative": Spec("U8", (bytes_of(dims[0]),)), "scale": Spec(dtype, ())}

    def delta(self, shape: tuple[int, ...], unified: Tensor | None = None) -> Tensor:
        scale = self.scale.float()
        return torch.where(unpack_bits(self.negative, prod(shape)).reshape(shape), -scale, scale)


def sparse(delta: Tensor, mask: Tensor) -> Sparse:
    """Keep the marked entries of a delta."""
    return Sparse(pack_bits(mask), delta[mask].to(torch.float32))


def signs(delta: Tensor, mask: Tensor, scales: Tensor) -> Signs:
    """Keep the signs of the marked entries of a delta, with the scales (2,) of the positive and the negative ones."""
    return Signs(pack_bits(mask), pack_bits(delta[mask] < 0), scales.to(torch.float32))
