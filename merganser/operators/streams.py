"""Walk the layers in a method's first pass. Legend: T tasks."""

from collections.abc import Callable, Iterator
from typing import Protocol, TypeVar, cast

from torch import Tensor

from merganser.layers import Layer, LayerDeltas

R = TypeVar("R")


class Stream(Protocol):
    """Layers to walk: a LayerSource, or what stands for one."""

    @property
    def names(self) -> tuple[str, ...]:
        """Return the parameters' names."""

    def map(self, function: Callable[[Layer], R]) -> Iterator[R]:
        """Read each layer and apply a function that keeps nothing of it; results in names' order."""


def over_deltas(layers: Stream, look: Callable[[LayerDeltas], R]) -> Iterator[R]:
    """Look at every layer of a method that reads deltas; `look` keeps nothing of it. Results in the layers' order."""
    return layers.map(cast(Callable[[Layer], R], look))


def over_stacks(layers: Stream, look: Callable[[Tensor], R]) -> Iterator[R]:
    """Look at the deltas (T, ...) of every layer; `look` keeps nothing of them. Results in the layers' order."""
    return over_deltas(layers, lambda layer: look(layer.deltas))
