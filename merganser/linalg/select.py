"""The largest entries of a vector that is never in memory as a whole: exact radix selection over a stream.

A magnitude's bit pattern, read as an integer, sorts like the magnitude, in every floating-point dtype. A first pass
over the stream counts the patterns by their leading bits, which tells the bin of the cut; a second takes the few
entries of that bin out, which tells the cut, and how many entries of each part of the stream are equal to it. Between
them a bin with many entries is cut into smaller ones, which takes a pass each. Nothing is converted, and memory is one
part of the stream, a histogram per task and a limited number of entries.

Legend: T tasks, C entries; a *stack* is a tensor (T, ...) of all tasks; every walk over the stream gives the same
stacks in the same order.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor

from merganser.operators.blocks import blocks
from merganser.operators.counts import count_of

R = TypeVar("R")
Change = Callable[[Tensor], Tensor]
INTEGERS = {2: torch.int16, 4: torch.int32, 8: torch.int64}  # by bytes of the floating-point dtype
DIGITS = {torch.int16: 16, torch.int32: 16, torch.int64: 19}  # bits told apart in one pass: of the mantissa eight
LIMIT = 1 << 22  # entries of all tasks that are taken out of the stream


@dataclass(frozen=True)
class Span:
    """The patterns among which each task's cut is: those that begin with the task's prefix."""

    integer: torch.dtype
    prefixes: tuple[int, ...]  # T
    bits: int  # that follow

    @property
    def shift(self) -> int:
        """Return how many of them are left when the next ones are told apart."""
        return max(0, self.bits - DIGITS[self.integer])

    def holds(self, patterns: Tensor) -> Tensor:
        """Mark the patterns (T, C) that are in the span."""
        return (patterns >> self.bits) == _column(self.prefixes, patterns)


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
    """What a counting pass learns of a stack."""

    entries: int  # of one task
    counts: Tensor  # (T, bins): of the patterns that are in one bin
    span: Span


class Taken(NamedTuple):
    """The patterns of one task that a stack has in the span of the cut, each once, and how often it is there."""

    patterns: Tensor
    counts: Tensor


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
        for t, (row, pattern, ties) in enumerate(zip(block, cut.patterns, cut.ties, strict=True)):
            if ties:
                first = (_patterns(row) == pattern).nonzero().flatten()[:ties]
                trimmed[t, first] = row[first]
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
    entries, counts, span = _counted(walk(partial(_count, change=change)))
    tasks, rank = len(counts), count(sum(entries))
    if rank == 0:  # nothing is kept: no magnitude has the last pattern
        return Cut((torch.iinfo(span.integer).max,) * tasks, (0,) * tasks), [[0] * tasks for _ in entries]
    span, ranks, inside = _narrowed(span, counts, [rank] * tasks)
    while inside > LIMIT and span.bits:
        _, counts, _ = _counted(walk(partial(_count, change=change, span=span)))
        span, ranks, inside = _narrowed(span, counts, ranks)
    stacks = list(walk(partial(_take, change=change, span=span)))
    found = [_nth([stack[t] for stack in stacks], rank) for t, rank in enumerate(ranks)]
    patterns, ties = zip(*found, strict=True)
    equal = [
        [int(own.counts[own.patterns == pattern].sum()) for own, pattern in zip(stack, patterns, strict=True)]
        for stack in stacks
    ]
    return Cut(patterns, ties), equal


def _counted(stacks: Iterable[Counted]) -> tuple[list[int], Tensor, Span]:
    """Return each stack's number of entries, the counts of all stacks together, and the span they are of."""
    all_stacks = iter(stacks)
    entries, counts, span = next(all_stacks)
    each, counts = [entries], counts.long()
    for entries, more, _ in all_stacks:
        each.append(entries)
        counts += more
    return each, counts, span


def _count(stack: Tensor, change: Change, span: Span | None = None) -> Counted:
    """Count the patterns of a stack (T, ...) in the span, by default all there are, by the bits that come next."""
    whole = span or _everything(change(blocks(stack)[0][:, :1]))
    bins = 1 << (whole.bits - whole.shift)
    counts = torch.zeros(len(stack), bins, dtype=torch.int32, device=stack.device)
    one = torch.ones((), dtype=torch.int32, device=stack.device)
    for block in blocks(stack):
        patterns = _patterns(change(block))
        here = span.holds(patterns).int() if span else one.expand_as(patterns)
        counts.scatter_add_(1, (patterns >> whole.shift).bitwise_and_(bins - 1).long(), here)
    return Counted(stack[0].numel(), counts, whole)


def _everything(values: Tensor) -> Span:
    """Return the span of all patterns that such values (T, ...) can have."""
    integer = INTEGERS[values.dtype.itemsize]
    return Span(integer, (0,) * len(values), torch.iinfo(integer).bits - 1)


def _narrowed(span: Span, counts: Tensor, ranks: Sequence[int]) -> tuple[Span, list[int], int]:
    """Narrow the span to the bin of each task in which the entry of its rank from the top is.

    Return the ranks within the bins, and how many entries of all tasks the bins have.
    """
    found = [_place(row, rank) for row, rank in zip(counts, ranks, strict=True)]
    pairs = zip(span.prefixes, found, strict=True)
    prefixes = tuple(prefix << (span.bits - span.shift) | place for prefix, (place, _) in pairs)
    inside = sum(int(row[place]) for row, (place, _) in zip(counts, found, strict=True))
    return Span(span.integer, prefixes, span.shift), [rank for _, rank in found], inside


def _place(counts: Tensor, rank: int) -> tuple[int, int]:
    """Find the place in counts (n,) of the one at this rank from the end, and its rank from the end of that place."""
    from_end = counts.flip(0).cumsum(0)
    place = int(torch.searchsorted(from_end, rank))
    return len(counts) - 1 - place, rank - (int(from_end[place - 1]) if place else 0)


def _take(stack: Tensor, change: Change, span: Span) -> list[Taken]:
    """Take the patterns in the span out of a stack (T, ...)."""
    first = [prefix << span.bits for prefix in span.prefixes]
    firsts = torch.zeros(len(first), dtype=torch.int64, device=stack.device)
    rows, found = [], []
    for block in blocks(stack):
        patterns = _patterns(change(block))
        inside = span.holds(patterns)
        if 0 in first or span.bits == 0:  # zeros, or the only pattern, may be many: these are counted, not taken
            many = (patterns == _column(first, patterns)).logical_and_(inside)
            firsts += many.sum(1)
            inside ^= many
        row, column = inside.nonzero(as_tuple=True)
        rows.append(row)
        found.append(patterns[row, column])
    row, values = torch.cat(rows), torch.cat(found)
    return [_once(values[row == t], *each) for t, each in enumerate(zip(first, firsts, strict=True))]


def _once(values: Tensor, first: int, firsts: Tensor) -> Taken:
    """Say which patterns there are and how often; and the first one, which is not among the values."""
    patterns, counts = values.unique(return_counts=True)
    return Taken(
        torch.cat([torch.tensor([first], dtype=patterns.dtype, device=patterns.device), patterns]),
        torch.cat([firsts.view(1), counts]).int(),
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
