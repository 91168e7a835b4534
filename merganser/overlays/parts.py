"""Parts: what one task adds to one parameter of the shared model, in the form it takes on disk.

A part is a frozen dataclass of tensors. It names its kind, and gives back the delta it stands for.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import ClassVar, Protocol

import torch
from torch import Tensor


class Part(Protocol):
    """What one task adds to one parameter."""

    kind: ClassVar[str]

    def delta(self, shape: tuple[int, ...], unified: Tensor | None = None) -> Tensor:
        """Return what is added to the base's parameter of this shape, in float32.

        `unified` is what the tasks share of this parameter, for parts that only modulate it.
        """


@dataclass(frozen=True)
class Dense:
    """A delta stored whole."""

    kind: ClassVar[str] = "dense"
    values: Tensor

    def delta(self, shape: tuple[int, ...], unified: Tensor | None = None) -> Tensor:
        """Return the stored values."""
        return self.values.float().reshape(shape)


@dataclass(frozen=True)
class LowRank:
    """A delta stored as U diag(S) Vh, the singular values folded into neither side."""

    kind: ClassVar[str] = "low_rank"
    u: Tensor  # (M, K)
    s: Tensor  # (K,)
    vh: Tensor  # (K, N)

    def delta(self, shape: tuple[int, ...], unified: Tensor | None = None) -> Tensor:
        """Multiply the factors out."""
        return ((self.u.float() * self.s.float()) @ self.vh.float()).reshape(shape)


@dataclass(frozen=True)
class Parts:
    """What a method with parts per task returns for one layer.

    A task's own delta is what its part gives; where `mixtures` names the task, it is the sum of other tasks' parts,
    each times its weight.
    """

    tasks: Mapping[str, Part] = field(default_factory=dict)
    unified: Tensor | None = None  # a delta that the tasks' parts modulate, stored once
    mixtures: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # the same for every layer


def delta_of(parts: Parts, task: str, shape: tuple[int, ...]) -> Tensor:
    """Return a task's own delta of this shape in float32: its part's, or its mixture of others'."""
    weights = parts.mixtures.get(task, {task: 1.0})
    deltas = [
        weight * parts.tasks[other].delta(shape, parts.unified)
        for other, weight in weights.items()
        if other in parts.tasks
    ]
    return torch.stack(deltas).sum(0) if deltas else torch.zeros(shape)


def tensors_of(part: Part) -> dict[str, Tensor]:
    """Return a part's tensors by field name."""
    return {f.name: getattr(part, f.name) for f in fields(part)}  # type: ignore[arg-type]


def moved(part: Part, device: str) -> Part:
    """Move a part's tensors to a device."""
    return replace(part, **{name: tensor.to(device) for name, tensor in tensors_of(part).items()})  # type: ignore[type-var]
