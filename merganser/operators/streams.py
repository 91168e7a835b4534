"""Walk the layers in a method's first pass. Legend: T tasks."""

from collections.abc import Iterable, Iterator
from operator import attrgetter
from typing import cast

from torch import Tensor

from merganser.layers import Layer, LayerDeltas


def each_deltas(layers: Iterable[Layer]) -> Iterator[LayerDeltas]:
    """Read every layer of a method that reads deltas, in turn, keeping hold of none."""
    return cast(Iterator[LayerDeltas], iter(layers))


def each_stack(layers: Iterable[Layer]) -> Iterator[Tensor]:
    """Read the deltas (T, ...) of every layer in turn, keeping hold of none."""
    return map(attrgetter("deltas"), each_deltas(layers))
