"""Parts: what one task adds to one parameter of the shared model, in the form it takes on disk.

A part is a frozen dataclass of tensors. It names its kind, and gives back the delta it stands for.

Legend: M rows, N columns, n entries, K singular triples.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from merganser.checkpoints.tensors import Spec


class Part(Protocol):
    """What one task adds to one parameter."""

    kind: ClassVar[str]
    factored: ClassVar[bool]  # stands for an M x N matrix by its factors, not for n entries

    @property
    def count(self) -> int:
        """Return what makes one task's part larger than another's: triples, or entries kept; 0 where nothing does."""

    @staticmethod
    def specs(dims: tuple[int, ...], count: int, dtype: str) -> dict[str, Spec]:
        """Describe the tensors of a part by its dimensions, (M, N) if factored and else (n,), its count and dtype."""

    def delta(self, shape: tuple[int, ...], unified: Tensor | None = None) -> Tensor:
        """Return what is added to the base's parameter of this shape, in float32.

        `unified` is what the tasks share of this parameter, for parts that only modulate it. Raises ValueError when
        the tensors contradict each other.
        """


@dataclass(frozen=True)
class Dense:
    """A delta stored whole."""

    kind: ClassVar[str] = "dense"
    factored: ClassVar[bool] = False
    values: Tensor

    @property
    def count(self) -> int:
        """Return 0: all tasks store as much."""
        return 0

    @staticmethod
    def specs(dims: tuple[int, ...], count: int, dtype: str) -> dict[str, Spec]:
        """Describe the values."""
        return {"values": Spec(dtype, dims)}

    def delta(self, shape: tuple[int, ...], unified: Tensor | None = None) -> Tensor:
        """Return the stored values."""
        return self.values.float().reshape(shape)


@dataclass(frozen=True)
class LowRank:
    """A delta stored as U diag(S) Vh, the singular values in float32 and folded into neither side."""

    kind: ClassVar[str] = "low_rank"
    factored: ClassVar[bool] = True
    u: Tensor  # (M, K)
    s: Tensor  # (K,)
    vh: Tensor  # (K, N)

    @property
    def count(self) -> int:
        """Return the number of triples."""
        return len(self.s)

    @staticmethod
    def specs(dims: tuple[int, ...], count: int, dtype: str) -> dict[str, Spec]:
        """Describe the factors; the dtype is that of the vectors."""
        rows, columns = dims
        return {"u": Spec(dtype, (rows, count)), "s": Spec("F32", (count,)), "vh": Spec(dtype, (count, columns))}

    def delta(self, shape: tuple[int, ...], unified: Tensor | None = None) -> Tensor:
        """Multiply the factors out: in float64, so that no number of threads changes what is rounded to float32."""
        return ((self.u.double() * self.s.double()) @ self.vh.double()).float().reshape(shape)


@dataclass(frozen=True)
class Parts:
    """What a method with parts per task returns for one layer.

    A task's own delta is what its part gives; where `mixtures` names the task, it is the sum of other tasks' parts,
    each times its weight.
    """

    tasks: Mapping[str, Part] = field(default_factory=dict)
    unified: Tensor | None = None  # a delta that the tasks' parts modulate, stored once
    mixtures: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # the same for every layer


def mixed(deltas: Iterable[tuple[float, Tensor]], shape: tuple[int, ...]) -> Tensor:
    """Add deltas, each times its weight, in float64; return float32."""
    summed: Tensor | None = None
    for weight, delta in deltas:
        summed = weight * delta.double() if summed is None else summed.add_(delta, alpha=weight)
    return torch.zeros(shape) if summed is None else summed.float()


def tensors_of(part: Part) -> dict[str, Tensor]:
    """Return a part's tensors by field name."""
    return {f.name: getattr(part, f.name) for f in fields(part)}  # type: ignore[arg-type]
