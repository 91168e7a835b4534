"""Select the largest entries of a vector exactly, over a stream: the whole vector is never in memory.

The n-th largest magnitude is found by histograms of bit patterns. A first pass over the stream counts the leading bits
of all magnitudes, which gives the bin of the wanted one. A second pass collects the entries in that bin; if there are
too many, passes that count the following bits come first. Memory holds a few pieces of a stack, one histogram per task
and the collected entries. A vector of few entries is sorted instead.

Entries equal to the least that is kept are kept too, so that neither their order nor that of the layers decides which
are; zeros never are.

Legend: T tasks, C entries; a *stack* is a tensor (T, ...) of all tasks.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain
from math import inf
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from merganser.linalg.blocks import block_size

Change = Callable[[Tensor], Tensor]
Rank = Callable[[int], int | Sequence[int]]  # of the n magnitudes of a task: one for all, T, or some a task in turn
DIGITS = {
    2: 15,
    4: 16,
    8: 18,
}  # bits counted in a pass, by bytes of a number: its exponent and some of its mantissa
# By bytes of a floating-point dtype: the bit patterns of magnitudes, read as these, sort like the magnitudes.
INTEGERS = {2: torch.int16, 4: torch.int32, 8: torch.int64}
LIMIT = 1 << 23  # entries of all tasks that may be collected
PIECE = 1 << 18  # entries of each task processed at a time
FEW = 1 << 13  # entries of a task that take less than a histogram of their own
SHORT = 1 << 12  # entries of a task that are sorted sooner than counted
# Applies a function, which must not keep it, to each stack (T, ...), always in the same order.
Stacks = Callable[[Callable[[Tensor], Any]], Iterable[Any]]


class Thresholds(NamedTuple):
    """The least magnitude within a rank, and how many entries have at least that and are not zero; one for each rank.

    The ranks are one a task, or some: those of the first task come first.
    """

    least: tuple[float, ...]  # infinity for rank 0
    levels: tuple[float, ...]  # the next smaller magnitudes, but not below 0
    kept: tuple[int, ...]  # entries whose magnitude is above the level
    entries: int  # of each task


class Bins(NamedTuple):
    """A range of patterns for each rank: those that start with its leading bits."""

    leading: tuple[int, ...]
    following: int  # how many bits follow


class Histogram(NamedTuple):
    """The number of patterns in a task's bins for each value of the bits after the leading ones."""

    counts: Tensor  # (ranks, 2 ** bits counted); of no bins (T, 2 ** bits counted)
    following: int  # how many bits follow those


class Distinct(NamedTuple):
    """The distinct magnitudes of one task in a bin, and how many entries have each."""

    magnitudes: Tensor
    counts: Tensor


def in_memory(*stacks: Tensor) -> Stacks:
    """Take stacks that are in memory."""
    return lambda function: map(function, stacks)


def thresholds(stacks: Stacks, count: Rank, change: Change | None = None) -> Thresholds:
    """Find each task's `count(n)`-th largest of its n magnitudes, or several of each task by one pass.

    `change` maps each block (T, C) to the values that are ranked, entry by entry.

    >>> stack = torch.tensor([[0.5, -2.0, 0.5, 1.0]])
    >>> found = thresholds(in_memory(stack), lambda n: 3)
    >>> found.least, found.kept, found.entries
    ((0.5,), (4,), 4)
    >>> thresholds(in_memory(stack), lambda n: [1, n]).least
    (2.0, 0.5)
    """
    counted = iter(stacks(partial(_counted, change=change, bins=None)))
    first = _first(counted)
    if isinstance(first, Tensor):
        return _by_sorting(first, count)
    histogram = _total(chain(first, counted), None)
    tasks, n = len(histogram.counts), int(histogram.counts[0].sum())
    wanted = _ranks(count, n, tasks)
    leading, ranks = [0] * len(wanted), wanted  # within the bins
    histogram = histogram._replace(counts=_each_rank(histogram.counts, len(wanted)))
    while True:
        places, ranks = map(list, zip(*map(_place, histogram.counts, ranks), strict=True))
        inside = sum(int(row[place]) for row, place in zip(histogram.counts, places, strict=True))
        bins = histogram.counts.shape[1]
        leading = [own * bins + place for own, place in zip(leading, places, strict=True)]
        narrowed = Bins(tuple(leading), histogram.following)
        if inside <= LIMIT or narrowed.following == 0:
            break
        histogram = _total(stacks(partial(_counted, change=change, bins=narrowed)), narrowed)
    taken = list(stacks(partial(_distinct, change=change, bins=narrowed)))
    levels_found = [_nth([stack[t] for stack in taken], rank) for t, rank in enumerate(ranks)]
    least, levels, equal = zip(*levels_found, strict=True)
    kept = [own - inside + more for own, inside, more in zip(wanted, ranks, equal, strict=True)]
    return Thresholds(least, levels, tuple(kept), n)


def _ranks(count: Rank, n: int, tasks: int) -> list[int]:
    """List the ranks, one a task or some."""
    rank = count(n)
    return [rank] * tasks if isinstance(rank, int) else list(rank)


def _each_rank(by_task: Tensor, ranks: int) -> Tensor:
    """Repeat the rows (T, ...) of each task for each of its ranks."""
    times = ranks // len(by_task)
    return by_task if times == 1 else by_task.repeat_interleave(times, 0)


def _rows(piece: Tensor, ranks: int) -> list[Tensor]:
    """List the rows (C,) of a piece (T, C), each for each of its task's ranks."""
    return [row for row in piece for _ in range(ranks // len(piece))]


def _first(counted: Iterator[Histogram | Tensor]) -> Tensor | list[Histogram | Tensor]:
    """Take pieces (T, C) until they are no short vectors; join them to such vectors (T, n) if they are all."""
    taken: list[Histogram | Tensor] = []
    entries = 0
    for more in counted:
        taken.append(more)
        entries += SHORT + 1 if isinstance(more, Histogram) else more.shape[1]
        if entries > SHORT:
            return taken
    return torch.cat(cast(list[Tensor], taken), dim=1)


def _by_sorting(vectors: Tensor, count: Rank) -> Thresholds:
    """Find the thresholds of vectors (T, n)."""
    n = vectors.shape[1]
    ranks = _ranks(count, n, len(vectors))
    patterns = _each_rank(magnitude_patterns(vectors).sort().values, len(ranks))
    if not any(ranks):  # as of no entries
        return Thresholds((inf,) * len(ranks), (inf,) * len(ranks), (0,) * len(ranks), n)
    least = patterns[range(len(ranks)), [n - own if own else 0 for own in ranks]]
    levels = (least - 1).clamp(min=0)
    kept = (patterns > levels.unsqueeze(1)).sum(1).tolist()
    by_rank = zip(ranks, least.view(vectors.dtype).tolist(), levels.view(vectors.dtype).tolist(), kept, strict=True)
    by_task = [own if rank else (inf, inf, 0) for rank, *own in by_rank]
    least_ones, below, counts = zip(*by_task, strict=True)
    return Thresholds(least_ones, below, counts, n)


def _counted(stack: Tensor, change: Change | None, bins: Bins | None) -> Histogram | Tensor:
    """Count a stack's patterns in the bins; of a small one return what is to be counted, (T, C)."""
    if stack.device.type == "cpu" and stack[0].numel() <= FEW:
        (piece,) = _pieces(stack, change)
        return piece.clone()
    return _total(_pieces(stack, change), bins)


def _total(counted: Iterable[Histogram | Tensor], bins: Bins | None) -> Histogram:
    """Add up histograms and the patterns of pieces (T, C) in the bins, by the bits that come next.

    Without bins, all patterns by the first bits.
    """
    total = None
    for more in counted:
        if isinstance(more, Histogram):
            total = total._replace(counts=total.counts.add_(more.counts)) if total else more
            continue
        # without bins no leading bits are fixed yet
        leading, before = bins or Bins((0,) * len(more), 8 * more.itemsize - 1)
        following = max(0, before - DIGITS[more.itemsize])
        total = total or Histogram(more.new_zeros(len(leading), 1 << before - following, dtype=torch.int64), following)
        for row, own, counts in zip(_rows(more, len(leading)), leading, total.counts, strict=True):
            _count(row, own, before, following, counts)
    assert total, "there is a stack, and it has pieces"
    return total


def _count(row: Tensor, leading: int, before: int, following: int, counts: Tensor) -> None:
    """Add the patterns (C,) that have these leading bits to `counts`, by the bits that come next."""
    if row.device.type == "cpu":
        from merganser.linalg import loops

        numbers, mask = _numbers(row)
        loops.count(numbers, mask, before, leading, following, counts.numpy())
    else:
        patterns = magnitude_patterns(row)
        bins = (patterns >> following).bitwise_and_(len(counts) - 1).to(torch.int32)
        bins.masked_fill_(patterns >> before != leading, len(counts))  # one more bin, which is not kept
        counts += bins.bincount(minlength=len(counts) + 1)[:-1]


def _distinct(stack: Tensor, change: Change | None, bins: Bins) -> list[Distinct]:
    """List the distinct magnitudes of each rank in its bin."""
    pieces = [
        [
            _take(row, own, bins.following).view(piece.dtype)
            for row, own in zip(_rows(piece, len(bins.leading)), bins.leading, strict=True)
        ]
        for piece in _pieces(stack, change)
    ]
    return [Distinct(*torch.cat(taken).unique(return_counts=True)) for taken in zip(*pieces, strict=True)]


def _take(row: Tensor, leading: int, before: int) -> Tensor:
    """Return the patterns (C,) that have these leading bits."""
    if row.device.type == "cpu":
        from merganser.linalg import loops

        numbers, mask = _numbers(row)
        taken = np.empty(len(numbers) + 1, numbers.dtype)
        return torch.from_numpy(taken[: loops.take(numbers, mask, before, leading, taken)].copy())
    patterns = magnitude_patterns(row)
    return patterns[patterns >> before == leading]


def magnitude_patterns(values: Tensor) -> Tensor:
    """Return the pattern of each value's magnitude, in a contiguous tensor.

    >>> magnitude_patterns(torch.tensor([0.0, -1.0, 2.0])).tolist()  # in the order of the magnitudes
    [0, 1065353216, 1073741824]
    """
    return values.abs().contiguous().view(INTEGERS[values.dtype.itemsize])


def _numbers(row: Tensor) -> tuple[NDArray, int]:
    """Return values (C,) viewed as integers, and the mask that clears the sign bit."""
    numbers = row.contiguous().view(INTEGERS[row.itemsize]).numpy()
    return numbers, int(np.iinfo(numbers.dtype).max)


def _pieces(stack: Tensor, change: Change | None) -> Iterator[Tensor]:
    """Cut a stack (T, ...) into pieces (T, C), and apply `change` to each."""
    size = PIECE if stack.device.type == "cpu" else max(1, block_size(stack.device) // len(stack))
    for piece in stack.reshape(len(stack), -1).split(size, dim=1):
        yield change(piece) if change else piece


def _nth(stacks: Sequence[Distinct], rank: int) -> tuple[float, float, int]:
    """Find the magnitude at this rank from the top, the level below it, and how many in the bin are above that."""
    if rank == 0:
        return inf, inf, 0
    magnitudes, order = torch.cat([stack.magnitudes for stack in stacks]).sort()
    counts = torch.cat([stack.counts for stack in stacks])[order]
    least = magnitudes[_place(counts, rank)[0]]
    level = magnitude_patterns(least).sub_(1).clamp_(min=0).view(least.dtype)
    return float(least), float(level), int(counts[magnitudes > level].sum())


def _place(counts: Tensor, rank: int) -> tuple[int, int]:
    """Return which of the counted bins (n,) holds the item at this rank from the end, and its rank within that bin.

    >>> _place(torch.tensor([5, 3, 1]), 3)
    (1, 2)
    """
    ends = counts.cumsum(0)
    first = int(ends[-1]) - rank  # items before it
    place = min(int(torch.searchsorted(ends, first, right=True)), len(counts) - 1)
    return place, int(ends[place]) - first
