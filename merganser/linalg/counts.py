"""Turn fractions into numbers of entries, and count what selections keep, for the profile of a merge."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from math import ceil, floor

SLACK = 1e-9  # 0.29 * 100 is 28.999999999999996 in binary


def count_of(fraction: float, n: int) -> int:
    """Return floor(fraction * n), tolerating rounding errors in the product.

    >>> count_of(0.29, 100)  # the product is 28.999999999999996
    29
    """
    return floor(fraction * n + SLACK)


def ceiling_of(fraction: float, n: int) -> int:
    """Return ceil(fraction * n), tolerating rounding errors in the product.

    >>> ceiling_of(0.993, 100), ceiling_of(0.07, 100)  # 7.000000000000001
    (100, 7)
    """
    return ceil(fraction * n - SLACK)


Tally = list[tuple[int, int]]  # by selection: the entries that were kept, of how many
_TALLY: ContextVar[Tally | None] = ContextVar("tally", default=None)


@contextmanager
def tallied() -> Iterator[Tally]:
    """Count what is kept within the block, in this thread and in those of `workers.map_in_order`.

    >>> with tallied() as tally:
    ...     note_kept(2, 10)
    >>> tally
    [(2, 10)]
    """
    tally: Tally = []
    token = _TALLY.set(tally)
    try:
        yield tally
    finally:
        _TALLY.reset(token)


def note_kept(kept: int, of: int) -> None:
    """Add to the tally, if there is one, that so many of the entries were kept."""
    tally = _TALLY.get()
    if tally is not None:
        tally.append((kept, of))


def share_of(tally: Tally) -> float | None:
    """Return the share that was kept of all entries among which was selected; None if there was no selection.

    >>> share_of([(2, 10), (1, 30)])
    0.075
    """
    entries = sum(of for _, of in tally)
    return sum(kept for kept, _ in tally) / entries if entries else None
