"""Count what selections keep, beside what they compute: for the profile of a merge."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

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
