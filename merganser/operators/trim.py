"""Trim each task's whole vector to its largest entries, one layer at a time (TIES, arXiv:2306.01708).

Legend: T tasks. The share is of the whole vector, not of each parameter: a parameter may lose all its entries.
"""

from collections.abc import Iterable, Iterator
from functools import partial

from torch import Tensor

from merganser.layers import Layer, LayerDeltas
from merganser.linalg.select import Cut, after, cut_at, kept
from merganser.operators.streams import each_deltas, each_stack


def with_cuts(layers: Iterable[Layer], density: float) -> Iterator[tuple[LayerDeltas, Cut]]:
    """Find each task's cut over all layers; then give each layer with the cut as it applies there."""
    cut = cut_at(partial(each_stack, layers), density)
    for layer in each_deltas(layers):
        yield layer, cut
        cut = after(layer.deltas, cut)
        del layer  # before the next is read: only one is ever in memory


def trim(deltas: Tensor, cut: Cut) -> Tensor:
    """Zero the entries of the tasks' deltas (T, ...) that the cut does not keep."""
    return deltas * kept(deltas, cut)
