"""Parts that select entries: a mask of one bit per entry, with or without values of its own.

Legend: n entries of the parameter, k of them kept.
"""

from dataclasses import dataclass
from math import prod
from typing import ClassVar

import torch
from torch import Tensor

from merganser.checkpoints.tensors import Spec
from merganser.overlays.bits import bytes_of, pack_bits, unpack_bits
from merganser.overlays.parts import Part


@dataclass(frozen=True)
class Masked(Part):
    """The shared delta where the task's mask is set, times the task's scale."""

    kind: ClassVar[str] = "masked"
    mask: Tensor  # n packed bits
    scale: Tensor  # ()

    @staticmethod
    def specs(dims: tuple[int, ...], count: int, dtype: str) -> dict[str, Spec]:
        """Describe the mask and its scale."""
        return {"mask": Spec("U8", (bytes_of(dims[0]),)), "scale": Spec(dtype, ())}

    def delta(self, shape: tuple[int, ...], unified: Tensor | None = None) -> Tensor:
        """Mask and scale the shared delta."""
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
        """Return the number of entries kept."""
        return len(self.values)

    @staticmethod
    def specs(dims: tuple[int, ...], count: int, dtype: str) -> dict[str, Spec]:
        """Describe the mask and the kept values."""
        return {"mask": Spec("U8", (bytes_of(dims[0]),)), "values": Spec(dtype, (count,))}

    def delta(self, shape: tuple[int, ...], unified: Tensor | None = None) -> Tensor:
        """Write the values to their positions."""
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
        """Return the number of entries kept: bits set in the mask."""
        return int(unpack_bits(self.mask, 8 * len(self.mask)).sum())

    @staticmethod
    def specs(dims: tuple[int, ...], count: int, dtype: str) -> dict[str, Spec]:
        """Describe the mask, the signs and their scales."""
        bits = {"mask": Spec("U8", (bytes_of(dims[0]),)), "negative": Spec("U8", (bytes_of(count),))}
        return bits | {"scales": Spec(dtype, (2,))}

    def delta(self, shape: tuple[int, ...], unified: Tensor | None = None) -> Tensor:
        """Write its sign's scale to each kept entry."""
        kept = unpack_bits(self.mask, prod(shape))
        count = int(kept.sum())
        if bytes_of(count) != len(self.negative):
            raise ValueError(f"its mask keeps {count} entries, but it has {len(self.negative)} bytes of signs")
        values = torch.zeros(prod(shape))
        values[kept] = self.scales.float()[unpack_bits(self.negative, count).long()]
        return values.reshape(shape)


def sparse(delta: Tensor, mask: Tensor) -> Sparse:
    """Keep the marked entries of a delta."""
    return Sparse(pack_bits(mask), delta[mask].to(torch.float32))


def signs(delta: Tensor, mask: Tensor, scales: Tensor) -> Signs:
    """Keep the signs of the marked entries of a delta, with the scales (2,) of the positive and the negative ones."""
    return Signs(pack_bits(mask), pack_bits(delta[mask] < 0), scales.to(torch.float32))
