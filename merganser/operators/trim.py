"""Trim each task's whole vector to its largest entries, one layer at a time (TIES, arXiv:2306.01708).

Legend: T tasks. The share is of the whole vector, not of each parameter: a parameter may lose all its entries.
"""

from functools import partial

from merganser.linalg.counts import count_of
from merganser.linalg.search import Change, Undecided
from merganser.linalg.select import Cut, cuts, cuts_and_undecided, each_trimmed
from merganser.operators.elect import balance_of, elect_sign
from merganser.operators.streams import Stacks, Stream


def layer_cuts(layers: Stream, density: float, change: Change | None = None) -> dict[str, Cut]:
    """Find where each task's whole vector is cut, as it applies to each layer; or what `change` makes of its blocks."""
    found = cuts(Stacks(layers), partial(count_of, density), change)
    return dict(zip(layers.names, found, strict=True))


def layer_cuts_and_balance(layers: Stream, density: float) -> tuple[dict[str, Cut], int | None]:
    """Find the cuts, and how many more columns of the trimmed vectors have a positive sum than a negative one.

    Of that, None where it takes another walk over the layers.
    """
    found = cuts_and_undecided(Stacks(layers), partial(count_of, density))
    known = [_balance(undecided, cut) for cut, undecided in found if undecided]
    cuts_ = dict(zip(layers.names, (cut for cut, _ in found), strict=True))
    return cuts_, sum(known) if len(known) == len(found) else None


def _balance(undecided: Undecided, cut: Cut) -> int:
    """Decide what was undecided by the cut."""
    return undecided.balance + sum(balance_of(elect_sign(block)) for block in each_trimmed(undecided.columns, cut))
