"""The largest entries of a vector that is never in memory as a whole: exact selection over a stream.

A magnitude's bit pattern, read as an integer, sorts like the magnitude, in every floating-point dtype. A first pass
over the stream counts the patterns of a sample by their leading bits, which tells between which patterns the cut most
likely is; a second takes the few entries between these out, and counts those above, which tells the cut, and how many
entries of each part of the stream are equal to it. If the cut is elsewhere, the search begins again among all patterns;
a span of patterns with many entries is cut into smaller ones, which takes a pass each. Nothing is converted, and memory
is one part of the stream, a histogram per task and a limited number of entries.

Legend: T tasks, C entries; a *stack* is a tensor (T, ...) of all tasks; every walk over the stream gives the same
stacks in the same order.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from math import ceil, floor, sqrt
from typing import NamedTuple, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from merganser.operators.blocks import blocks
from merganser.operators.counts import count_of

R = TypeVar("R")
Change = Callable[[Tensor], Tensor]
INTEGERS = {2: torch.int16, 4: torch.int32, 8: torch.int64}  # by bytes of the floating-point dtype
DIGITS = {torch.int16: 16, torch.int32: 16, torch.int64: 19}  # bits told apart in one pass: of the mantissa eight
LIMIT = 1 << 22  # entries of all tasks that are taken out of the stream
SAMPLE = 17  # every how manyth entry is in the sample: no divisor of a layer's width, or all were of the same columns
MARGIN = 6.0  # standard deviations of the cut's place in a sample


@dataclass(frozen=True)
class Span:
    """The patterns among which each task's cut is: so many from the task's lowest on."""

    integer: torch.dtype
    lows: tuple[int, ...]  # T
    bits: int  # 2**bits patterns

    @property
    def shift(self) -> int:
        """Return how many of the bits are left when the leading ones are told apart."""
        return max(0, self.bits - DIGITS[self.integer])

    def against(self, patterns: Tensor) -> tuple[Tensor, Tensor]:
        """Return each pattern's distance (T, C) from the lowest, and its side: 0 in the span, 1 above it, -1 below.

        The patterns are overwritten: what is at work here is to stay in a processor's cache.
        """
        distances = patterns.sub_(_column(self.lows, patterns))
        return distances, (distances >> self.bits).clamp_(-1, 1)


@dataclass(frozen=True)
class Cut:
    """Where each task's magnitudes are cut: those above are kept, and the first few of those equal to it."""

    patterns: tuple[int, ...]  # T bit patterns; -1 is below them all
    ties: tuple[int, ...]  # T: how many entries with just this pattern are kept, in reading order


class Walk(Protocol):
    """Look at each stack of a stream: apply a function, which keeps nothing of it, and give the results in order."""

    def __call__(self, look: Callable[[Tensor], R], /) -> Iterable[R]:
        """Walk once."""


class Counted(NamedTuple):
    """What a counting pass learns of a stack, or of all."""

    entries: list[int]  # of one task, by stack
    counts: Tensor  # (T, bins): of the patterns in the span
    above: Tensor  # (T): how many are above the span
    span: Span


class Taken(NamedTuple):
    """The patterns of one task that a stack has in the span of the cut, each once, and how often it is there."""

    patterns: Tensor
    counts: Tensor
    above: int  # how many entries are above the span


def cut_at(read: Callable[[], Iterable[Tensor]], density: float) -> Cut:
    """Find, per task, the cut that keeps floor(density * n) of the n entries of the stacks that `read` gives."""

    def walk(look: Callable[[Tensor], R]) -> Iterator[R]:
        return map(look, read())

    return whole_cut(walk, partial(count_of, density))


def whole_cut(walk: Walk, count: Callable[[int], int], change: Change | None = None) -> Cut:
    """Find, per task, the cut that keeps `count(n)` of the n entries of the stream.

    `change` makes of each block (T, C), entry by entry, what is cut in its place.
    """
    return _found(walk, count, change or _same)[0]


def cuts(walk: Walk, count: Callable[[int], int], change: Change | None = None) -> list[Cut]:
    """Find the same as it applies to each stack: of the entries equal to it, the first of the whole stream are kept."""
    cut, stacks = _found(walk, count, change or _same)
    found, left = [], list(cut.ties)
    for equal in stacks:
        found.append(_within(cut.patterns, left, equal))
        left = [max(0, ties - own) for ties, own in zip(left, equal, strict=True)]
    return found


def each_trimmed(stack: Tensor, cut: Cut) -> Iterator[Tensor]:
    """Give a stack (T, ...) block by block (T, C), with zeros for the entries that the cut does not keep."""
    levels = [_value(pattern, stack.dtype) for pattern in cut.patterns]
    for block in blocks(stack):
        trimmed = torch.empty_like(block)
        for row, level, out in zip(block, levels, trimmed, strict=True):
            torch.hardshrink(row, level, out=out)
        for t, ties in enumerate(cut.ties):
            if ties:
                first = (_patterns(block[t]) == cut.patterns[t]).nonzero().flatten()[:ties]
                trimmed[t, first] = block[t, first]
        cut = after(block, cut)
        yield trimmed


def kept(stack: Tensor, cut: Cut, change: Change | None = None) -> Tensor:
    """Mark the entries of a stack (T, ...) that the cut keeps: by what `change` makes of them, where it is given."""
    change = change or _same
    masks = torch.empty(stack.shape, dtype=torch.bool, device=stack.device)
    for block, out in zip(blocks(stack), blocks(masks), strict=True):
        changed = change(block)
        patterns = _patterns(changed)
        torch.gt(patterns, _column(cut.patterns, patterns), out=out)
        for mask, row, pattern, ties in zip(out, patterns, cut.patterns, cut.ties, strict=True):
            if ties:
                mask[(row == pattern).nonzero().flatten()[:ties]] = True
        cut = after(changed, cut)
    return masks


def after(stack: Tensor, cut: Cut) -> Cut:
    """Return the cut for what follows this stack in the stream: fewer entries equal to it are still to be kept."""
    if not any(cut.ties):
        return cut
    rows = zip(stack, cut.patterns, cut.ties, strict=True)
    left = (ties and max(0, ties - int((_patterns(row) == pattern).sum())) for row, pattern, ties in rows)
    return Cut(cut.patterns, tuple(left))


def top_mask(values: Tensor, density: float) -> Tensor:
    """Mark the floor(density * n) largest magnitudes of one tensor; of equal ones the first in flat order."""
    return largest(values, count_of(density, values.numel()))


def largest(values: Tensor, count: int) -> Tensor:
    """Mark the `count` largest magnitudes of one tensor; of equal ones the first in flat order."""
    magnitudes = values.abs().flatten()
    if count == 0:
        return torch.zeros(values.shape, dtype=torch.bool, device=values.device)
    least = magnitudes.kthvalue(len(magnitudes) - count + 1).values
    mask = magnitudes >= least
    if too_many := int(mask.sum()) - count:
        mask[(magnitudes == least).nonzero().flatten()[-too_many:]] = False
    return mask.view(values.shape)


def _same(block: Tensor) -> Tensor:
    return block


def _patterns(values: Tensor) -> Tensor:
    return values.abs().contiguous().view(INTEGERS[values.dtype.itemsize])


def _value(pattern: int, dtype: torch.dtype) -> float:
    """Return the magnitude of a pattern: of one that no magnitude has, infinity; of -1, a number below them all."""
    if pattern < 0:
        return -1.0
    most = torch.tensor(torch.inf, dtype=dtype).view(INTEGERS[dtype.itemsize])
    return float(most.clamp(max=pattern).view(dtype))


def _column(numbers: Sequence[int], patterns: Tensor) -> Tensor:
    """Set one number a task (T, 1) beside the patterns (T, C)."""
    return torch.tensor(numbers, dtype=patterns.dtype, device=patterns.device).unsqueeze(1)


def _found(walk: Walk, count: Callable[[int], int], change: Change) -> tuple[Cut, list[list[int]]]:
    """Find the cut, and how many entries of each stack are equal to it (T)."""
    sample = _counted(walk(partial(_count, change=change, every=SAMPLE)))
    tasks, rank = len(sample.counts), count(sum(sample.entries))
    if rank == 0:  # nothing is kept: no magnitude has the last pattern
        return Cut((torch.iinfo(sample.span.integer).max,) * tasks, (0,) * tasks), [[0] * tasks for _ in sample.entries]
    found = _searched(walk, change, rank, *_likely(sample, rank))
    found = found or _searched(walk, change, rank, sample.span, tasks * sum(sample.entries))
    assert found, "a walk over the stream did not give the same stacks again"
    return found


def _searched(walk: Walk, change: Change, rank: int, span: Span, inside: int) -> tuple[Cut, list[list[int]]] | None:
    """Find the same in a span that has about so many entries of all tasks; None if a task's cut is not in it."""
    while inside > LIMIT and span.bits:
        counted = _counted(walk(partial(_count, change=change, span=span)))
        ranks = [rank - above for above in counted.above.tolist()]
        if not _are_among(ranks, counted.counts.sum(1).tolist()):
            return None
        span, inside = _narrowed(counted, ranks)
    stacks = list(walk(partial(_take, change=change, span=span)))
    ranks = [rank - sum(stack[t].above for stack in stacks) for t in range(len(span.lows))]
    if not _are_among(ranks, [sum(int(stack[t].counts.sum()) for stack in stacks) for t in range(len(ranks))]):
        return None
    found = [_nth([stack[t] for stack in stacks], rank) for t, rank in enumerate(ranks)]
    patterns, ties = zip(*found, strict=True)
    equal = [
        [int(own.counts[own.patterns == pattern].sum()) for own, pattern in zip(stack, patterns, strict=True)]
        for stack in stacks
    ]
    return Cut(patterns, ties), equal


def _are_among(ranks: Sequence[int], counts: Sequence[int]) -> bool:
    """Tell whether each task's rank is one of so many entries."""
    return all(0 < rank <= count for rank, count in zip(ranks, counts, strict=True))


def _counted(stacks: Iterable[Counted]) -> Counted:
    """Return each stack's number of entries, the counts of all stacks together, and the span they are of."""
    all_stacks = iter(stacks)
    entries, counts, above, span = next(all_stacks)
    counts = counts.long()
    for more in all_stacks:
        entries += more.entries
        counts += more.counts
        above += more.above
    return Counted(entries, counts, above, span)


def _count(stack: Tensor, change: Change, span: Span | None = None, every: int = 1) -> Counted:
    """Count the patterns of a stack (T, ...) in the span, by default all there are, by the bits that come next."""
    whole = span or _everything(change(blocks(stack)[0][:, :1]))
    bins = 1 << (whole.bits - whole.shift)
    counts = torch.zeros(len(stack), bins, dtype=torch.int32, device=stack.device)
    above = torch.zeros(len(stack), dtype=torch.int64, device=stack.device)
    for block in blocks(stack.reshape(len(stack), -1)[:, ::every]):
        distances, sides = whole.against(_patterns(change(block)))
        above += (sides > 0).sum(1)
        bin_of_each = (distances >> whole.shift).bitwise_and_(bins - 1)
        counts.scatter_add_(1, bin_of_each.long(), sides.eq_(0).int())
    return Counted([stack[0].numel()], counts, above, whole)


def _everything(values: Tensor) -> Span:
    """Return the span of all patterns that such values (T, ...) can have."""
    integer = INTEGERS[values.dtype.itemsize]
    return Span(integer, (0,) * len(values), torch.iinfo(integer).bits - 1)


def _zeros(numbers: Tensor) -> Tensor:
    """Mark what is 0 by 1, all else by 0 (int8); the numbers are overwritten.

    Torch's comparisons into truth values take several times as long.
    """
    return numbers.eq_(0).to(torch.int8)


def _marked(marks: Tensor) -> Tensor:
    """Find the flat places of the few marks (int8) that are 1."""
    flat = marks.view(torch.bool).view(-1)
    if flat.device.type != "cpu":
        return flat.nonzero().view(-1)
    return torch.from_numpy(np.flatnonzero(flat.numpy()))  # several times as fast as torch


def _likely(sample: Counted, rank: int) -> tuple[Span, int]:
    """Find a span in which each task's cut is, most likely, and how many entries of all tasks are about in it.

    `rank`: of the cut, from the top, among all entries of a task.
    """
    span, size = sample.span, int(sample.counts[0].sum())
    place = rank * size / sum(sample.entries)
    margin = MARGIN * sqrt(place * (1 - place / size)) + len(sample.entries)
    lowest = [_place(row, min(size, ceil(place + margin)))[0] for row in sample.counts]
    highest = [_place(row, floor(place - margin))[0] if place - margin >= 1 else len(row) - 1 for row in sample.counts]
    bits = max(high - low for low, high in zip(lowest, highest, strict=True)).bit_length()
    inside = sum(int(row[low : low + (1 << bits)].sum()) for row, low in zip(sample.counts, lowest, strict=True))
    return Span(span.integer, tuple(low << span.shift for low in lowest), span.shift + bits), SAMPLE * inside


def _narrowed(counted: Counted, ranks: Sequence[int]) -> tuple[Span, int]:
    """Narrow the span to the bin of each task in which the entry of its rank from the top is.

    Return also how many entries of all tasks the bins have.
    """
    span, counts = counted.span, counted.counts
    bins = [_place(row, rank)[0] for row, rank in zip(counts, ranks, strict=True)]
    lows = tuple(low + (place << span.shift) for low, place in zip(span.lows, bins, strict=True))
    return Span(span.integer, lows, span.shift), sum(int(row[place]) for row, place in zip(counts, bins, strict=True))


def _place(counts: Tensor, rank: int) -> tuple[int, int]:
    """Find the place in counts (n,) of the one at this rank from the end, and its rank from the end of that place."""
    from_end = counts.flip(0).cumsum(0)
    place = int(torch.searchsorted(from_end, rank))
    return len(counts) - 1 - place, rank - (int(from_end[place - 1]) if place else 0)


def _take(stack: Tensor, change: Change, span: Span) -> list[Taken]:
    """Take the patterns in the span out of a stack (T, ...)."""
    firsts = torch.zeros(len(stack), dtype=torch.int64, device=stack.device)
    balance = torch.zeros_like(firsts)  # of those above and those below
    rows, found = [], []
    for block in blocks(stack):
        distances, sides = span.against(_patterns(change(block)))
        balance += sides.sum(1, dtype=torch.int32)
        inside = _zeros(sides)
        if 0 in span.lows or span.bits == 0:  # zeros, or the only pattern, may be many: these are counted, not taken
            many = _zeros(distances.clone())
            firsts += many.sum(1)
            inside -= many
        marked = _marked(inside)
        rows.append(marked // distances.shape[1])
        found.append(distances.view(-1)[marked])
    row, values = torch.cat(rows), torch.cat(found)
    outside = stack[0].numel() - torch.bincount(row, minlength=len(stack)) - firsts
    above = (outside + balance) // 2
    each = zip(span.lows, firsts, above.tolist(), strict=True)
    return [_once(values[row == t] + low, low, many, over) for t, (low, many, over) in enumerate(each)]


def _once(values: Tensor, first: int, firsts: Tensor, above: int) -> Taken:
    """Say which patterns there are and how often; and the first one, which may be not among the values."""
    patterns, counts = values.unique(return_counts=True)
    return Taken(
        torch.cat([torch.tensor([first], dtype=patterns.dtype, device=patterns.device), patterns]),
        torch.cat([firsts.view(1), counts]).int(),
        above,
    )


def _nth(stacks: Sequence[Taken], rank: int) -> tuple[int, int]:
    """Find the pattern at this rank from the top among those taken, and its rank among the equal ones."""
    patterns, order = torch.cat([stack.patterns for stack in stacks]).sort()
    counts = torch.cat([stack.counts for stack in stacks])[order]
    pattern = patterns[_place(counts, rank)[0]]
    return int(pattern), rank - int(counts[patterns > pattern].sum())


def _within(patterns: Sequence[int], ties: Sequence[int], equal: Sequence[int]) -> Cut:
    """Return the cut for one stack, of which so many entries equal the patterns, and `ties` of all to come are kept.

    Where all or none of them are, no ties are left to tell apart.
    """
    pairs = [
        (pattern - 1, 0) if own <= left else (pattern, left)
        for pattern, left, own in zip(patterns, ties, equal, strict=True)
    ]
    return Cut(*zip(*pairs, strict=True))
