"""Passes over all layers, before the first is merged. Legend: T tasks."""

from collections.abc import Callable, Iterator
from typing import TypeVar

from torch import Tensor

from merganser.inputs.layers import LayerSource

R = TypeVar("R")


def over_stacks(layers: LayerSource, function: Callable[[Tensor], R]) -> Iterator[R]:
    """Apply a function, which must not keep them, to the deltas (T, ...) of every layer."""
    return layers.map(lambda layer: function(layer.deltas))
