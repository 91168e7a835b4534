"""Passes over all layers, before the first is merged. Legend: T tasks."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar, cast

from torch import Tensor

from merganser.inputs.layers import Layer, LayerDeltas, LayerSource

R = TypeVar("R")


def over_deltas(layers: LayerSource, function: Callable[[LayerDeltas], R]) -> Iterator[R]:
    """Apply a function, which must not keep the layer, to every layer of a method that reads deltas."""
    return layers.map(cast(Callable[[Layer], R], function))


def over_stacks(layers: LayerSource, function: Callable[[Tensor], R]) -> Iterator[R]:
    """Apply a function, which must not keep them, to the deltas (T, ...) of every layer."""
    return over_deltas(layers, lambda layer: function(layer.deltas))


@dataclass(frozen=True)
class Stacks:
    """The layers' deltas as a `StackSource`."""

    layers: LayerSource

    def each(self, function: Callable[[Tensor], R]) -> Iterator[R]:
        """Apply a function to the deltas (T, ...) of every layer."""
        return over_stacks(self.layers, function)
