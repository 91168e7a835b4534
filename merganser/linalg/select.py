"""The largest entries of a vector that is never in memory as a whole: exact radix selection over a stream.

A magnitude's bit pattern, read as an integer, sorts like the magnitude, in every floating-point dtype. Each pass over
the stream counts sixteen bits of the patterns (two passes for float32, four for float64, one for float16 and
bfloat16), so the cut is exact, nothing is converted, and memory is one stack and one histogram per task.

Legend: T tasks; a *stack* is a tensor (T, ...) of all tasks; every reading of the stream gives the same stacks in the
same order.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from merganser.operators.counts import count_of

DIGIT = 16  # bits counted in one pass
BINS = 1 << DIGIT
INTEGERS = {2: torch.int16, 4: torch.int32, 8: torch.int64}  # by bytes of the floating-point dtype


@dataclass(frozen=True)
class Cut:
    """Where each task's magnitudes are cut: those above are kept, and the first few of those equal to it."""

    patterns: tuple[int, ...]  # T bit patterns
    ties: tuple[int, ...]  # T: how many entries with just this pattern are kept, in reading order


def cut_at(read: Callable[[], Iterable[Tensor]], density: float) -> Cut:
    """Find, per task, the cut that keeps floor(density * n) of the n entries of the stream."""
    dtype = next(iter(read())).dtype
    width = dtype.itemsize * 8
    prefixes: list[int] = []
    ranks: list[int] = []
    for shift in range(width - DIGIT, -1, -DIGIT):
        counts = _histograms(read(), shift, prefixes)
        ranks = ranks or [count_of(density, int(row.sum())) for row in counts]
        found = [_digit_at(row, rank) for row, rank in zip(counts, ranks, strict=True)]
        ranks = [rank for _, rank in found]
        prefixes = [p << DIGIT | digit for p, (digit, _) in zip(prefixes or [0] * len(found), found, strict=True)]
    highest = torch.iinfo(INTEGERS[dtype.itemsize]).max  # where nothing is kept, the digits are all ones, sign bit too
    return Cut(tuple(min(p, highest) for p in prefixes), tuple(ranks))


def kept(stack: Tensor, cut: Cut) -> Tensor:
    """Mark the entries of a stack (T, ...) that the cut keeps."""
    rows = zip(stack, cut.patterns, cut.ties, strict=True)
    return torch.stack([_kept(row, pattern, ties) for row, pattern, ties in rows])


def after(stack: Tensor, cut: Cut) -> Cut:
    """Return the cut for what follows this stack in the stream: fewer entries equal to it are still to be kept."""
    rows = zip(stack, cut.patterns, cut.ties, strict=True)
    left = (max(0, ties - int((_patterns(row) == pattern).sum())) for row, pattern, ties in rows)
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


def _patterns(values: Tensor) -> Tensor:
    return values.abs().contiguous().view(INTEGERS[values.dtype.itemsize])


def _histograms(stacks: Iterable[Tensor], shift: int, prefixes: list[int]) -> Tensor:
    """Count the digit at `shift` per task, among the patterns that begin with the task's prefix (any, without one)."""
    counts = torch.zeros(0)
    for stack in stacks:
        if not len(counts):
            counts = torch.zeros(len(stack), BINS, dtype=torch.int64, device=stack.device)
        for t, row in enumerate(stack):
            _count(row, shift, prefixes[t] if prefixes else None, counts[t])
        del stack, row  # before the next is read: only one is ever in memory
    return counts


def _count(row: Tensor, shift: int, prefix: int | None, counts: Tensor) -> None:
    """Add one task's digits to its counts."""
    leading = _patterns(row).flatten() >> shift
    if prefix is not None:
        leading = leading[leading >> DIGIT == prefix]
    digits = leading & (BINS - 1)
    if len(digits) < BINS:  # a histogram of its own would be longer than the parameter
        counts.scatter_add_(0, digits.long(), torch.ones_like(digits, dtype=torch.int64))
    else:
        counts += torch.bincount(digits, minlength=BINS)


def _digit_at(counts: Tensor, rank: int) -> tuple[int, int]:
    """Find the digit of the entry at this rank from the top, and its rank among the entries with that digit."""
    from_top = counts.flip(0).cumsum(0)
    place = int(torch.searchsorted(from_top, rank))
    return BINS - 1 - place, rank - (int(from_top[place - 1]) if place else 0)


def _kept(row: Tensor, pattern: int, ties: int) -> Tensor:
    patterns = _patterns(row).flatten()
    mask = patterns > pattern
    mask[(patterns == pattern).nonzero().flatten()[:ties]] = True
    return mask.view(row.shape)
