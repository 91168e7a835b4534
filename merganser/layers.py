"""What a method is given: one layer of all tasks.

Shape legend: T tasks, M rows, N columns, R = min(M, N), K stored singular vectors (K <= R).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol

from torch import Tensor

Kind = Literal["matrix", "vector"]


class Factors(NamedTuple):
    """The SVD of one task matrix: leading vectors, whole spectrum (descending)."""

    u: Tensor  # (M, K)
    s: Tensor  # (R,)
    vh: Tensor  # (K, N)


@dataclass(frozen=True)
class LayerDeltas:
    """One parameter's deltas (fine-tuned minus base) over all tasks, in float32."""

    name: str
    kind: Kind
    tasks: tuple[str, ...]
    deltas: Tensor  # (T, M, N) for a matrix, (T, *shape) for a vector
    seed: int = 0
    prepared: Any = None  # what the method's first pass returned


@dataclass(frozen=True)
class LayerFactors:
    """One matrix parameter's factors over all tasks."""

    name: str
    tasks: tuple[str, ...]
    factors: tuple[Factors, ...]  # T of them
    seed: int = 0
    prepared: Any = None
    kind: Literal["matrix"] = "matrix"

    @property
    def shape(self) -> tuple[int, int]:
        """Return (M, N)."""
        first = self.factors[0]
        return first.u.shape[0], first.vh.shape[1]


Layer = LayerDeltas | LayerFactors


class LayerSource(Protocol):
    """Layers read one at a time, as often as asked: memory stays at T x the largest layer."""

    @property
    def tasks(self) -> tuple[str, ...]:
        """Return the tasks' names."""

    @property
    def names(self) -> tuple[str, ...]:
        """Return the merged parameters' names."""

    def layer(self, name: str) -> Layer:
        """Read one parameter of all tasks."""

    def __iter__(self) -> Iterator[Layer]:
        """Read every parameter in turn; can be started again for a second pass."""
