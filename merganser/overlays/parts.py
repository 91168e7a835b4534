"""Parts: what one task adds to one parameter of the shared model, in the form that is stored.

A part is a frozen dataclass of tensors, with a kind, that computes the delta it encodes.

Legend: M rows, N columns, n entries, K singular triples.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import ClassVar

import torch
from torch import Tensor

from merganser.checkpoints.tensors import Spec


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
        """Describe the values."""
        return {"values": Spec(dtype, dims)}

    def delta(self, shape: tuple[int, ...], unified: Tensor | None = None) -> Tensor:
        """Return the stored values."""
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
        """Return the number of triples."""
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
