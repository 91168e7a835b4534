"""Passes over all layers, before the first is merged. Legend: T tasks."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol, TypeVar, cast

from torch import Tensor

from merganser.inputs.layers import Layer, LayerDeltas

R = TypeVar("R")


class Layers(Protocol):
    """Layers that can be read one by one: a LayerSource, or the layers in other coordinates."""

    @property
    def tasks(self) -> tuple[str, ...]:
        """Return the tasks' names."""

    @property
    def names(self) -> tuple[str, ...]:
        """Return the parameters' names."""

    def map(self, function: Callable[[Layer], R]) -> Iterator[R]:
        """Read each layer and apply a function that does not keep it; return the results in the names' order."""


def over_deltas(layers: Layers, function: Callable[[LayerDeltas], R]) -> Iterator[R]:
    """Apply a function, which must not keep the layer, to every layer of a method that reads deltas."""
    return layers.map(cast(Callable[[Layer], R], function))


def over_stacks(layers: Layers, function: Callable[[Tensor], R]) -> Iterator[R]:
    """Apply a function, which must not keep them, to the deltas (T, ...) of every layer."""
    return over_deltas(layers, lambda layer: function(layer.deltas))


@dataclass(frozen=True)
class Stacks:
    """The layers' deltas as a `StackSource`."""

    layers: Layers

    def each(self, function: Callable[[Tensor], R]) -> Iterator[R]:
        """Apply a function to the deltas (T, ...) of every layer."""
        return over_stacks(self.layers, function)
