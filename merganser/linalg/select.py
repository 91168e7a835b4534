"""Select the largest entries of a vector exactly, over a stream: the whole vector is never in memory.

Legend: T tasks, C entries; a *stack* is a tensor (T, ...) of all tasks.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from merganser.linalg.blocks import blocks
from merganser.linalg.counts import count_of, counts_of
from merganser.linalg.patterns import column, levels_of, patterns_of
from merganser.linalg.thresholds import Change, InMemory, Rank, StackSource, thresholds


@dataclass(frozen=True)
class Cut:
    """The magnitude at which each task is cut: larger ones are kept, and the first few of those equal to it."""

    patterns: tuple[int, ...]  # T bit patterns; -1 is below them all
    ties: tuple[int, ...]  # T: how many entries with exactly this pattern are kept, in reading order


def cut_at(read: Callable[[], Iterable[Tensor]], density: float | Sequence[float]) -> Cut:
    """Find, per task, the cut that keeps floor(density * n) of the n entries of the stacks that `read` yields.

    `density`: of all tasks, or T of them.

    >>> stack = torch.tensor([[0.5, -2.0, 0.5, 1.0]])
    >>> kept(stack, cut_at(lambda: [stack], 0.75))  # of the two equal ones the first
    tensor([[ True,  True, False,  True]])
    """
    count = partial(counts_of, density) if isinstance(density, Sequence) else partial(count_of, density)
    return whole_cut(InMemory(read), count)


def whole_cut(stacks: StackSource, count: Rank, change: Change | None = None) -> Cut:
    """Find, per task, the cut that keeps `count(n)` of the n entries of all stacks.

    `change` maps each block (T, C) to the values that are compared, entry by entry.
    """
    found = thresholds(stacks, count, change)
    return Cut(found.patterns, found.ties)


def cuts(stacks: StackSource, count: Rank, change: Change | None = None) -> list[Cut]:
    """Find the cut for each stack: of the entries equal to the threshold, the first in the whole stream are kept."""
    found = thresholds(stacks, count, change)
    cuts_, left = [], list(found.ties)
    known: dict[Cut, Cut] = {}  # one object for all that are equal: a large model is a stream of many stacks
    for equal in found.equal:
        cut = _within(found.patterns, left, equal)
        cuts_.append(known.setdefault(cut, cut))
        left = [max(0, ties - own) for ties, own in zip(left, equal, strict=True)]
    return cuts_


def each_trimmed(stack: Tensor, cut: Cut) -> Iterator[Tensor]:
    """Yield a stack (T, ...) block by block (T, C), with zeros for the entries that the cut does not keep.

    >>> stack = torch.tensor([[0.5, -2.0, 0.5, 1.0]])
    >>> torch.cat(list(each_trimmed(stack, cut_at(lambda: [stack], 0.5))), dim=1)
    tensor([[ 0., -2.,  0.,  1.]])
    """
    levels = levels_of(cut.patterns, stack).tolist()
    for block in blocks(stack):
        trimmed = torch.empty_like(block)
        for row, level, out in zip(block, levels, trimmed, strict=True):
            torch.hardshrink(row, level, out=out)
        for t, ties in enumerate(cut.ties):
            if ties:
                first = (patterns_of(block[t]) == cut.patterns[t]).nonzero().flatten()[:ties]
                trimmed[t, first] = block[t, first]
        cut = after(block, cut)
        yield trimmed


def kept(stack: Tensor, cut: Cut, change: Change | None = None) -> Tensor:
    """Mark the entries of a stack (T, ...) that the cut keeps, comparing `change` of them if it is given."""
    masks = torch.empty(stack.shape, dtype=torch.bool, device=stack.device)
    for block, out in zip(blocks(stack), blocks(masks), strict=True):
        changed = change(block) if change else block
        patterns = patterns_of(changed)
        torch.gt(patterns, column(cut.patterns, patterns), out=out)
        for mask, row, pattern, ties in zip(out, patterns, cut.patterns, cut.ties, strict=True):
            if ties:
                mask[(row == pattern).nonzero().flatten()[:ties]] = True
        cut = after(changed, cut)
    return masks


def after(stack: Tensor, cut: Cut) -> Cut:
    """Return the cut for the rest of the stream after this stack: its kept ties are deducted."""
    if not any(cut.ties):
        return cut
    rows = zip(stack, cut.patterns, cut.ties, strict=True)
    left = (ties and max(0, ties - int((patterns_of(row) == pattern).sum())) for row, pattern, ties in rows)
    return Cut(cut.patterns, tuple(left))


def _within(patterns: Sequence[int], ties: Sequence[int], equal: Sequence[int]) -> Cut:
    """Return the cut for one stack with `equal` entries at the threshold, of which the first `ties` are kept.

    Where all of them are kept the cut moves just below the threshold, and has no ties.
    """
    pairs = [
        (pattern - 1, 0) if own <= left else (pattern, left)
        for pattern, left, own in zip(patterns, ties, equal, strict=True)
    ]
    return Cut(*zip(*pairs, strict=True))
