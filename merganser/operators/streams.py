"""Walk the layers in a method's first pass."""

from collections.abc import Iterator
from typing import cast

from merganser.layers import LayerDeltas, LayerSource


def each_deltas(layers: LayerSource) -> Iterator[LayerDeltas]:
    """Read every layer of a method that reads deltas, in turn."""
    return (cast(LayerDeltas, layer) for layer in layers)
