"""Passes over all layers, before the first is merged. Legend: T tasks."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol, TypeVar, cast

from torch import Tensor

from merganser.inputs.layers import Layer, LayerDeltas

R = TypeVar("R")


class Walkable(Protocol):
    """Layers to go over: a LayerSource, or the layers in other coordinates."""

    @property
    def names(self) -> tuple[str, ...]:
        """Return the parameters' names."""

    def map(self, function: Callable[[Layer], R]) -> Iterator[R]:
        """Read each layer and apply a function that keeps nothing of it; results in names' order."""


def over_deltas(layers: Walkable, function: Callable[[LayerDeltas], R]) -> Iterator[R]:
    """Apply a function to every layer of a method that reads deltas; it keeps nothing of them."""
    return layers.map(cast(Callable[[Layer], R], function))


def over_stacks(layers: Walkable, function: Callable[[Tensor], R]) -> Iterator[R]:
    """Apply a function to the deltas (T, ...) of every layer; it keeps nothing of them."""
    return over_deltas(layers, lambda layer: function(layer.deltas))


@dataclass(frozen=True)
class Stacks:
    """The layers' deltas, as `linalg.select` takes them."""

    layers: Walkable

    def each(self, function: Callable[[Tensor], R]) -> Iterator[R]:
        """Apply a function to the deltas (T, ...) of every layer."""
        return over_stacks(self.layers, function)
