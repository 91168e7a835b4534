"""Search a stream of entries for the one of a rank, by magnitude, with little in memory.

A first pass over the stream counts the patterns of a sample by their leading bits, which tells between which patterns
the entry most likely is; a second takes the few entries between these out, and counts those above, which tells the
pattern, and how many entries of each part of the stream are equal to it. If it is elsewhere, the search begins again
among all patterns; a span of patterns with many entries is cut into smaller ones, which takes a pass each. Nothing is
converted, and memory is one part of the stream, a histogram per task and a limited number of entries, or of the columns
they are in.

Legend: T tasks, C entries; a *stack* is a tensor (T, ...) of all tasks.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from math import ceil, floor, sqrt
from typing import NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor

from merganser.linalg.blocks import blocks, is_looped, picked
from merganser.linalg.patterns import INTEGERS, column, levels_of, patterns_of

R = TypeVar("R")
Change = Callable[[Tensor], Tensor]
DIGITS = {torch.int16: 16, torch.int32: 16, torch.int64: 19}  # bits told apart in one pass: of the mantissa eight
LIMIT = 1 << 22  # entries of all tasks that are taken out of the stream
RUN = 16  # entries side by side in the sample: what a processor fetches at once
SAMPLE = 17  # every how manyth run is in the sample: no divisor of a layer's width, or all were of the same columns
MARGIN = 4.0  # standard deviations of the entry's place in a sample of independent entries


class Stream(Protocol):
    """Stacks (T, ...), looked at as often as asked, always in the same order; no look keeps anything of one."""

    def each(self, look: Callable[[Tensor], R], /) -> Iterable[R]:
        """Look at each stack; give the results in order."""

    def samples(self, run: int, every: int, /) -> Iterable[tuple[Tensor, int]]:
        """Give every so manyth run of each stack's entries (T, C), and how many a task has in all."""


@dataclass(frozen=True)
class InMemory:
    """Stacks that a function gives."""

    read: Callable[[], Iterable[Tensor]]

    def each(self, look: Callable[[Tensor], R]) -> Iterator[R]:
        """Look at each stack."""
        return map(look, self.read())

    def samples(self, run: int, every: int) -> Iterator[tuple[Tensor, int]]:
        """Give a sample of each stack."""
        return self.each(lambda stack: (picked(_flat(stack), run, every), stack[0].numel()))


@dataclass(frozen=True)
class Span:
    """Patterns from a lowest to a highest, for each task."""

    integer: torch.dtype
    lows: tuple[int, ...]  # T
    highs: tuple[int, ...]  # T, in the span too

    @property
    def bits(self) -> int:
        """Return how many bits tell all patterns of a task apart, counted from its lowest."""
        return max(high - low for low, high in zip(self.lows, self.highs, strict=True)).bit_length()

    @property
    def shift(self) -> int:
        """Return how many of the bits are left when the leading ones are told apart."""
        return max(0, self.bits - DIGITS[self.integer])

    @property
    def crowded(self) -> bool:
        """Tell whether the entries of a task's lowest pattern may be many: zeros, or the only pattern there is."""
        return 0 in self.lows or self.bits == 0


class Counted(NamedTuple):
    """What is counted in a sample, or by a pass over all entries."""

    counts: Tensor  # (T, bins): of the patterns in the span
    above: Tensor  # (T): how many are above the span
    span: Span


class Taken(NamedTuple):
    """The patterns of one task that a stack has in the span, each once, and how often it is there."""

    patterns: Tensor
    counts: Tensor
    above: int  # how many entries are above the span


class Band(NamedTuple):
    """The entries of a block (T, C) in the span: by torch, or by one compiled loop."""

    patterns: list[Tensor]  # T of (n,): the entries', n of the task
    above: Tensor  # (T): how many entries are above the span
    lowest: Tensor  # (T): how many have the lowest pattern, where these are not among the others
    columns: Tensor  # (T, columns): those they are in
    balance: int  # of the other columns: how many more have a positive sum of what is above than a negative


class Undecided(NamedTuple):
    """A stack's balance: how many more columns have a positive sum of the entries up to the rank than a negative."""

    balance: int  # of the columns whose entries are all far from the rank
    columns: Tensor  # (T, C): the others


class Looked(NamedTuple):
    """What a taking pass learns of a stack."""

    taken: list[Taken]  # T
    undecided: Undecided | None  # None where it would be too much, or was not asked for


class Found(NamedTuple):
    """The entries of the rank, and what was learnt of each stack on the way."""

    patterns: tuple[int, ...]  # T: the magnitudes'
    ties: tuple[int, ...]  # T: how many of the entries with this pattern are up to the rank
    equal: list[list[int]]  # by stack and task: how many entries have it
    undecided: list[Undecided | None]  # by stack


def find(stream: Stream, count: Callable[[int], int], change: Change | None = None, *, balance: bool = False) -> Found:
    """Find each task's entry of rank `count(n)` among its n by magnitude, from the top.

    `change` makes of each block (T, C), entry by entry, what is ranked in its place. `balance`: say what is undecided.
    """
    sample, entries = _sampled(stream.samples(RUN, SAMPLE), change)
    tasks, rank = len(sample.counts), count(sum(entries))
    if rank == 0:  # nothing is kept: no magnitude has the last pattern
        last, none = (torch.iinfo(sample.span.integer).max,) * tasks, (0,) * tasks
        return Found(last, none, [[0] * tasks for _ in entries], [None for _ in entries])
    search = partial(_searched, stream, change, rank, balance)
    found = search(*_likely(sample, entries, rank)) or search(sample.span, tasks * sum(entries))
    assert found, "a walk over the stream did not give the same stacks again"
    return found


def _searched(stream: Stream, change: Change | None, rank: int, balance: bool, span: Span, inside: int) -> Found | None:
    """Find the same in a span that has about so many entries of all tasks; None if a task's entry is not in it."""
    while inside > LIMIT and span.bits:
        counted = _counted(stream.each(partial(_count_all, change=change, span=span)))
        ranks = [rank - above for above in counted.above.tolist()]
        if not _are_among(ranks, counted.counts.sum(1).tolist()):
            return None
        span, inside = _narrowed(counted, ranks)
    looked = list(stream.each(partial(_look, change=change, span=span, balance=balance)))
    stacks = [look.taken for look in looked]
    ranks = [rank - sum(stack[t].above for stack in stacks) for t in range(len(span.lows))]
    if not _are_among(ranks, [sum(int(stack[t].counts.sum()) for stack in stacks) for t in range(len(ranks))]):
        return None
    found = [_nth([stack[t] for stack in stacks], rank) for t, rank in enumerate(ranks)]
    patterns, ties = zip(*found, strict=True)
    equal = [
        [int(own.counts[own.patterns == pattern].sum()) for own, pattern in zip(stack, patterns, strict=True)]
        for stack in stacks
    ]
    return Found(patterns, ties, equal, [look.undecided for look in looked])


def _are_among(ranks: Sequence[int], counts: Sequence[int]) -> bool:
    """Tell whether each task's rank is one of so many entries."""
    return all(0 < rank <= count for rank, count in zip(ranks, counts, strict=True))


def _sampled(samples: Iterable[tuple[Tensor, int]], change: Change | None) -> tuple[Counted, list[int]]:
    """Count the patterns of all stacks' samples together; return also how many entries of a task each stack has."""
    counted, entries = None, []
    for values, size in samples:
        counted = counted or _none_counted(values, _everything(_changed(values[:, :1], change)))
        _count(values, change, counted)
        entries.append(size)
    assert counted, "a stream of no stacks"
    return counted, entries


def _counted(stacks: Iterable[Counted]) -> Counted:
    """Add up what is counted of each stack."""
    all_stacks = iter(stacks)
    total = next(all_stacks)
    for more in all_stacks:
        total.counts.add_(more.counts)
        total.above.add_(more.above)
    return total


def _count_all(stack: Tensor, change: Change | None, span: Span) -> Counted:
    """Count the patterns of a stack (T, ...) in the span, by the bits that come next."""
    counted = _none_counted(stack, span)
    _count(_flat(stack), change, counted)
    return counted


def _none_counted(values: Tensor, span: Span) -> Counted:
    counts = torch.zeros(len(values), 1 << (span.bits - span.shift), dtype=torch.int64, device=values.device)
    return Counted(counts, torch.zeros(len(values), dtype=torch.int64, device=values.device), span)


def _count(values: Tensor, change: Change | None, counted: Counted) -> None:
    """Add the patterns of values (T, C) to those counted before."""
    counts, above, span = counted
    for block in blocks(values):
        changed = _changed(block, change)
        patterns = patterns_of(changed)
        lows, highs = column(span.lows, patterns), column(span.highs, patterns)
        if is_looped(changed):
            from merganser.linalg import loops

            limits = (limit.flatten().numpy() for limit in (lows, highs))
            loops.add_counts(patterns.numpy(), *limits, counts.numpy(), above.numpy(), span.shift)
            continue
        inside = (patterns >= lows) & (patterns <= highs)
        above += (patterns > highs).sum(1)
        bin_of_each = (patterns - lows >> span.shift).bitwise_and_(counts.shape[1] - 1)
        counts.scatter_add_(1, bin_of_each.long(), inside.long())


def _everything(values: Tensor) -> Span:
    """Return the span of all patterns that such values (T, ...) can have."""
    integer = INTEGERS[values.dtype.itemsize]
    return Span(integer, (0,) * len(values), (torch.iinfo(integer).max,) * len(values))


def _likely(sample: Counted, entries: list[int], rank: int) -> tuple[Span, int]:
    """Find a span in which each task's entry of a rank is, most likely, and about how many of all tasks' are in it."""
    span, size = sample.span, int(sample.counts[0].sum())
    place = rank * size / sum(entries)
    margin = MARGIN * sqrt(place * (1 - place / size)) + RUN / 2 * len(entries)
    lowest = [_place(row, min(size, ceil(place + margin)))[0] for row in sample.counts]
    highest = [_place(row, floor(place - margin))[0] if place - margin >= 1 else len(row) - 1 for row in sample.counts]
    bins = list(zip(lowest, highest, strict=True))
    inside = sum(int(row[low : high + 1].sum()) for row, (low, high) in zip(sample.counts, bins, strict=True))
    return _part(span, bins), SAMPLE * inside


def _narrowed(counted: Counted, ranks: Sequence[int]) -> tuple[Span, int]:
    """Narrow the span to the bin of each task in which the entry of its rank from the top is.

    Return also how many entries of all tasks the bins have.
    """
    span, counts = counted.span, counted.counts
    bins = [_place(row, rank)[0] for row, rank in zip(counts, ranks, strict=True)]
    inside = sum(int(row[place]) for row, place in zip(counts, bins, strict=True))
    return _part(span, [(place, place) for place in bins]), inside


def _part(span: Span, bins: Sequence[tuple[int, int]]) -> Span:
    """Return the part of a span that is from one bin of each task to another."""
    pairs = list(zip(span.lows, bins, strict=True))
    lows = tuple(low + (first << span.shift) for low, (first, _) in pairs)
    highs = tuple(low + ((last + 1) << span.shift) - 1 for low, (_, last) in pairs)
    return Span(span.integer, lows, highs)


def _place(counts: Tensor, rank: int) -> tuple[int, int]:
    """Find the place in counts (n,) of the one at this rank from the end, and its rank from the end of that place."""
    from_end = counts.flip(0).cumsum(0)
    place = int(torch.searchsorted(from_end, rank))
    return len(counts) - 1 - place, rank - (int(from_end[place - 1]) if place else 0)


def _look(stack: Tensor, change: Change | None, span: Span, balance: bool) -> Looked:
    """Take the patterns in the span out of a stack (T, ...), and the columns they are in if the balance is wanted."""
    pieces = blocks(stack) if change or not is_looped(stack) else (_flat(stack),)
    bands = [_band(_changed(piece, change), span) for piece in pieces]
    patterns = [torch.cat(parts) for parts in zip(*(band.patterns for band in bands), strict=True)]
    above, lowest = (sum(parts).tolist() for parts in zip(*((band.above, band.lowest) for band in bands), strict=True))
    taken = [_once(*of_task) for of_task in zip(patterns, span.lows, lowest, above, strict=True)]
    if not balance or span.crowded:
        return Looked(taken, None)
    columns = torch.cat([band.columns for band in bands], dim=1)
    return Looked(taken, Undecided(sum(band.balance for band in bands), columns))


def _band(values: Tensor, span: Span) -> Band:
    """Find the entries (T, C) whose pattern is in the span; the lowest pattern's are only counted if it is crowded."""
    floors = [low - (not span.crowded) for low in span.lows]
    lowest = torch.zeros(len(values), dtype=torch.int64, device=values.device)
    if span.crowded:
        for block in blocks(values):
            patterns = patterns_of(block)
            lowest += (patterns == column(span.lows, patterns)).sum(1)
    if is_looped(values):
        from merganser.linalg import loops

        limits = (levels_of(patterns, values).numpy() for patterns in (floors, span.highs))
        *arrays, balance = loops.banded(values.contiguous().numpy(), *limits)
        magnitudes, found, columns, above = map(torch.from_numpy, arrays)
        taken = [row[:many] for row, many in zip(magnitudes.view(span.integer), found.tolist(), strict=True)]
        return Band(taken, above, lowest, columns.T.contiguous(), balance)
    patterns = patterns_of(values)
    beyond = patterns > column(span.highs, patterns)
    inside = (patterns > column(floors, patterns)) & ~beyond
    undecided = inside.any(0)
    sums = torch.where(beyond, values, 0).sum(0, dtype=torch.float64)
    balance = int(sums[~undecided].sign().sum())
    taken = [row[within] for row, within in zip(patterns, inside, strict=True)]
    return Band(taken, beyond.sum(1), lowest, values[:, undecided], balance)


def _once(values: Tensor, first: int, firsts: int, above: int) -> Taken:
    """Say which patterns there are and how often; and the first one, which may be not among the values."""
    patterns, counts = values.unique(return_counts=True)
    place = torch.tensor([first], dtype=patterns.dtype, device=patterns.device)
    many = torch.tensor([firsts], dtype=counts.dtype, device=counts.device)
    return Taken(torch.cat([place, patterns]), torch.cat([many, counts]), above)


def _nth(stacks: Sequence[Taken], rank: int) -> tuple[int, int]:
    """Find the pattern at this rank from the top among those taken, and its rank among the equal ones."""
    patterns, order = torch.cat([stack.patterns for stack in stacks]).sort()
    counts = torch.cat([stack.counts for stack in stacks])[order]
    pattern = patterns[_place(counts, rank)[0]]
    return int(pattern), rank - int(counts[patterns > pattern].sum())


def _changed(values: Tensor, change: Change | None) -> Tensor:
    return change(values) if change else values


def _flat(stack: Tensor) -> Tensor:
    return stack.reshape(len(stack), -1)
