"""Walk the layers in a method's first pass."""

from collections.abc import Iterable, Iterator
from typing import cast

from merganser.layers import Layer, LayerDeltas


def each_deltas(layers: Iterable[Layer]) -> Iterator[LayerDeltas]:
    """Read every layer of a method that reads deltas, in turn, keeping hold of none."""
    return cast(Iterator[LayerDeltas], iter(layers))
