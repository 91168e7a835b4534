"""Find each task's n-th largest magnitude in a stream of stacks, by histograms of bit patterns.

A pass over the stream counts the leading bits of all magnitudes' patterns, which tells the bin of the wanted one. The
next takes the entries in that bin out; where they are too many, it counts the bits that follow first. Exact, in the
memory of a few pieces of a stack, a histogram a task and the entries taken.

Legend: T tasks, C entries; a *stack* is a tensor (T, ...) of all tasks.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor

from merganser.linalg.patterns import patterns_of

R = TypeVar("R")
Change = Callable[[Tensor], Tensor]
DIGITS = {
    2: 15,
    4: 16,
    8: 18,
}  # bits counted in a pass, by bytes of a number: its exponent and more
LIMIT = 1 << 23  # entries of all tasks that are taken out of the stream
PIECE = 1 << 18  # entries of each task in work at once


class StackSource(Protocol):
    """Stacks (T, ...), read as often as asked, always in the same order."""

    def each(self, function: Callable[[Tensor], R], /) -> Iterable[R]:
        """Apply a function that keeps nothing of a stack to each; results in order."""


@dataclass(frozen=True)
class InMemory:
    """Stacks that a function gives."""

    read: Callable[[], Iterable[Tensor]]

    def each(self, function: Callable[[Tensor], R]) -> Iterator[R]:
        """Apply a function to each stack."""
        return map(function, self.read())


class Thresholds(NamedTuple):
    """The magnitude of a rank, as a bit pattern, and how many entries have it."""

    patterns: tuple[int, ...]  # T
    ties: tuple[int, ...]  # T: how many of the entries with this pattern are up to the rank
    equal: list[list[int]]  # by stack and task: how many entries have it


class Bins(NamedTuple):
    """A range of patterns for each task: those that begin with its leading bits."""

    leading: tuple[int, ...]  # T
    following: int  # how many bits follow


class Histogram(NamedTuple):
    """How many patterns in a task's bin have the same bits after the leading ones."""

    counts: Tensor  # (T, 2 ** bits counted)
    following: int  # how many bits follow those


class Distinct(NamedTuple):
    """The patterns of one task in its bin, each once, and how many entries have it."""

    patterns: Tensor
    counts: Tensor


def thresholds(stacks: StackSource, count: Callable[[int], int], change: Change | None = None) -> Thresholds:
    """Find each task's magnitude of rank `count(n)` among its n, from the top; of rank 0 it is above all.

    `change` makes of each block (T, C), entry by entry, what is ranked in its place.

    >>> stack = torch.tensor([[0.5, -2.0, 0.5, 1.0]])
    >>> found = thresholds(InMemory(lambda: [stack]), lambda n: 3)
    >>> torch.tensor(found.patterns, dtype=torch.int32).view(torch.float32), found.ties, found.equal
    (tensor([0.5000]), (1,), [[2]])
    """
    histogram = _total(stacks.each(partial(_histogram, change=change, bins=None)))
    tasks, n = len(histogram.counts), int(histogram.counts[0].sum())
    leading, ranks = [0] * tasks, [count(n)] * tasks
    while True:
        places, ranks = map(list, zip(*map(_place, histogram.counts, ranks), strict=True))
        inside = sum(int(row[place]) for row, place in zip(histogram.counts, places, strict=True))
        bins = histogram.counts.shape[1]
        leading = [own * bins + place for own, place in zip(leading, places, strict=True)]
        narrowed = Bins(tuple(leading), histogram.following)
        if inside <= LIMIT or narrowed.following == 0:
            break
        histogram = _total(stacks.each(partial(_histogram, change=change, bins=narrowed)))
    taken = list(stacks.each(partial(_distinct, change=change, bins=narrowed)))
    return _exact(taken, narrowed, ranks)


def _histogram(stack: Tensor, change: Change | None, bins: Bins | None) -> Histogram:
    """Count a stack's patterns in the bins by the bits that come next; all patterns by their leading bits at first."""
    total = None
    for rows in _in_bins(stack, change, bins):
        before = bins.following if bins else 8 * rows[0].itemsize - 1
        following = max(0, before - DIGITS[rows[0].itemsize])
        size = 1 << before - following
        found = ((row >> following).bitwise_and_(size - 1).bincount(minlength=size) for row in rows)
        counts = torch.stack([each.int() for each in found])  # a stack has less than 2 ** 31 entries
        total = Histogram(counts if total is None else total.counts.add_(counts), following)
    assert total, "a stack has pieces"
    return total


def _distinct(stack: Tensor, change: Change | None, bins: Bins) -> list[Distinct]:
    """List the different patterns of each task in its bin."""
    rows = zip(*_in_bins(stack, change, bins), strict=True)
    return [Distinct(*torch.cat(pieces).unique(return_counts=True)) for pieces in rows]


def _in_bins(stack: Tensor, change: Change | None, bins: Bins | None) -> Iterator[list[Tensor]]:
    """Give the patterns of each task (C,) in its bin, piece by piece of a stack (T, ...)."""
    for piece in stack.reshape(len(stack), -1).split(PIECE, dim=1):
        patterns = patterns_of(change(piece) if change else piece)
        if bins is None:
            yield list(patterns)
        else:
            yield [row[row >> bins.following == own] for row, own in zip(patterns, bins.leading, strict=True)]


def _total(histograms: Iterable[Histogram]) -> Histogram:
    """Add up the histograms of all stacks."""
    all_stacks = iter(histograms)
    first = next(all_stacks)
    total = Histogram(first.counts.long(), first.following)
    for more in all_stacks:
        total.counts.add_(more.counts)
    return total


def _exact(stacks: Sequence[Sequence[Distinct]], bins: Bins, ranks: Sequence[int]) -> Thresholds:
    """Find the pattern of each task's rank, counted from the top of its bin, among those of all stacks."""
    last = [(own + 1 << bins.following) - 1 for own in bins.leading]
    found = [_nth([stack[t] for stack in stacks], rank) if rank else (last[t], 0) for t, rank in enumerate(ranks)]
    patterns, ties = zip(*found, strict=True)
    equal = [
        [int(own.counts[own.patterns == pattern].sum()) for own, pattern in zip(stack, patterns, strict=True)]
        for stack in stacks
    ]
    return Thresholds(patterns, ties, equal)


def _nth(stacks: Sequence[Distinct], rank: int) -> tuple[int, int]:
    """Find the pattern at this rank from the top, and its rank among the equal ones."""
    patterns, order = torch.cat([stack.patterns for stack in stacks]).sort()
    counts = torch.cat([stack.counts for stack in stacks])[order]
    pattern = patterns[_place(counts, rank)[0]]
    return int(pattern), rank - int(counts[patterns > pattern].sum())


def _place(counts: Tensor, rank: int) -> tuple[int, int]:
    """Return the place in counts (n,) of the one at this rank from the end, and its rank from the end of that place.

    >>> _place(torch.tensor([5, 3, 1]), 3)
    (1, 2)
    """
    from_end = counts.flip(0).cumsum(0)
    place = int(torch.searchsorted(from_end, rank))
    return len(counts) - 1 - place, rank - (int(from_end[place - 1]) if place else 0)
