"""Trim each task's whole vector to its largest entries, one layer at a time (TIES, arXiv:2306.01708).

Legend: T tasks. The share is of the whole vector, not of each parameter: a parameter may lose all its entries.
"""

from functools import partial

from merganser.linalg.select import Change, Cut, cuts
from merganser.operators.counts import count_of
from merganser.operators.streams import Stream, over_stacks


def layer_cuts(layers: Stream, density: float, change: Change | None = None) -> dict[str, Cut]:
    """Find where each task's whole vector is cut, as it applies to each layer; or what `change` makes of its blocks."""
    found = cuts(partial(over_stacks, layers), partial(count_of, density), change)
    return dict(zip(layers.names, found, strict=True))
