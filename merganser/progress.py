"""Report the progress of long work: by a bar on a terminal, or not at all."""

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")
Progress = Callable[[str, int, int], None]  # what is being done, how much of it is done, and how much there is


def unwatched(what: str, done: int, total: int) -> None:
    """Report nothing."""


def watched(items: Iterable[T], size: Callable[[T], int], total: int, what: str, progress: Progress) -> Iterator[T]:
    """Yield items, and tell after each how much is done."""
    done = 0
    progress(what, done, total)
    for item in items:
        yield item
        done += size(item)
        del item  # before the next one is made: both together may be too much
        progress(what, done, total)
