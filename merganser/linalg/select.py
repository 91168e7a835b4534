"""The largest entries of a vector that is never in memory as a whole: exact selection over a stream.

Legend: T tasks, C entries; a *stack* is a tensor (T, ...) of all tasks.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from merganser.linalg.blocks import blocks
from merganser.linalg.counts import count_of
from merganser.linalg.patterns import column, levels_of, patterns_of
from merganser.linalg.thresholds import Change, InMemory, StackSource, thresholds


@dataclass(frozen=True)
class Cut:
    """Where each task's magnitudes are cut: those above are kept, and the first few of those equal to it."""

    patterns: tuple[int, ...]  # T bit patterns; -1 is below them all
    ties: tuple[int, ...]  # T: how many entries with just this pattern are kept, in reading order


def cut_at(read: Callable[[], Iterable[Tensor]], density: float) -> Cut:
    """Find, per task, the cut that keeps floor(density * n) of the n entries of the stacks that `read` gives.

    >>> stack = torch.tensor([[0.5, -2.0, 0.5, 1.0]])
    >>> kept(stack, cut_at(lambda: [stack], 0.75))  # of the two equal ones the first
    tensor([[ True,  True, False,  True]])
    """
    return whole_cut(InMemory(read), partial(count_of, density))


def whole_cut(stacks: StackSource, count: Callable[[int], int], change: Change | None = None) -> Cut:
    """Find, per task, the cut that keeps `count(n)` of the n entries of all stacks.

    `change` makes of each block (T, C), entry by entry, what is cut in its place.
    """
    found = thresholds(stacks, count, change)
    return Cut(found.patterns, found.ties)


def cuts(stacks: StackSource, count: Callable[[int], int], change: Change | None = None) -> list[Cut]:
    """Find the cut as it applies to each stack: of the entries equal to it, the first of the whole stream are kept."""
    found = thresholds(stacks, count, change)
    cuts_, left = [], list(found.ties)
    for equal in found.equal:
        cuts_.append(_within(found.patterns, left, equal))
        left = [max(0, ties - own) for ties, own in zip(left, equal, strict=True)]
    return cuts_


def each_trimmed(stack: Tensor, cut: Cut) -> Iterator[Tensor]:
    """Give a stack (T, ...) block by block (T, C), with zeros for the entries that the cut does not keep.

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
    """Mark the entries of a stack (T, ...) that the cut keeps: by what `change` makes of them, where it is given."""
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
    """Return the cut for what follows this stack in the stream: fewer entries equal to it are still to be kept."""
    if not any(cut.ties):
        return cut
    rows = zip(stack, cut.patterns, cut.ties, strict=True)
    left = (ties and max(0, ties - int((patterns_of(row) == pattern).sum())) for row, pattern, ties in rows)
    return Cut(cut.patterns, tuple(left))


def _within(patterns: Sequence[int], ties: Sequence[int], equal: Sequence[int]) -> Cut:
    """Return the cut for one stack, of which so many entries equal the patterns, and `ties` of all to come are kept.

    Where all or none of them are, no ties are left to tell apart.
    """
    pairs = [
        (pattern - 1, 0) if own <= left else (pattern, left)
        for pattern, left, own in zip(patterns, ties, equal, strict=True)
    ]
    return Cut(*zip(*pairs, strict=True))
