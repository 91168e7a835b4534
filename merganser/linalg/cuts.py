"""Keep the largest entries of each task, by the thresholds of whole vectors.

Legend: T tasks, C entries; a *stack* is a tensor (T, ...) of all tasks.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from merganser.linalg.blocks import blocks
from merganser.linalg.counts import count_of, note_kept
from merganser.linalg.thresholds import Change, Rank, Stacks, thresholds

Cut = tuple[float, ...]  # T levels: of each task the entries are kept whose magnitude is above its level


def cut_at(stacks: Stacks, density: float | Sequence[float]) -> Cut:
    """Find the cut that keeps at least floor(density * n) of the n entries of each task in all stacks.

    `density`: of all tasks, or T of them.

    >>> from merganser.linalg.thresholds import in_memory
    >>> stack = torch.tensor([[0.5, -2.0, 0.25, 0.5]])
    >>> kept(stack, cut_at(in_memory(stack), 0.5))  # both that are the second largest
    tensor([[ True,  True, False,  True]])
    """
    if isinstance(density, Sequence):
        return cut_of(stacks, lambda n: [count_of(share, n) for share in density])
    return cut_of(stacks, partial(count_of, density))


def cut_of(stacks: Stacks, count: Rank, change: Change | None = None) -> Cut:
    """Find the cut that keeps at least `count(n)` of the n entries of each task in all stacks, but no zeros.

    `change` maps each block (T, C) to the values that are compared, entry by entry.
    """
    cuts = thresholds(stacks, count, change)
    note_kept(sum(cuts.kept), cuts.entries * len(cuts.kept))
    return cuts.levels


def each_trimmed(stack: Tensor, cut: Cut, unit: int = 1) -> Iterator[Tensor]:
    """Yield a stack (T, ...) block by block (T, C), with zeros for the entries that the cut does not keep.

    C is a multiple of `unit`.

    >>> from merganser.linalg.thresholds import in_memory
    >>> stack = torch.tensor([[0.5, -2.0, 0.25, 1.0]])
    >>> torch.cat(list(each_trimmed(stack, cut_at(in_memory(stack), 0.5))), dim=1)
    tensor([[ 0., -2.,  0.,  1.]])
    """
    for block in blocks(stack, unit):
        trimmed = torch.empty_like(block)
        for row, level, out in zip(block, cut, trimmed, strict=True):
            torch.hardshrink(row, level, out=out)
        yield trimmed


class Band(NamedTuple):
    """The magnitudes each task keeps: above its level, up to the largest."""

    levels: Cut  # T
    largest: tuple[float, ...]  # T


def band_of(stacks: Stacks, above: Sequence[int], wanted: Sequence[int]) -> Band:
    """Find the band of the `wanted` entries of each task that come after the `above` largest.

    Entries equal to one of them are in it too.
    """

    def ranks(n: int) -> list[int]:
        pairs = zip(above, wanted, strict=True)
        return [rank for over, own in pairs for rank in (over + own if own else 0, min(over + 1, n))]

    cuts = thresholds(stacks, ranks)
    return Band(cuts.levels[::2], cuts.least[1::2])


def each_in_band(stack: Tensor, band: Band, unit: int = 1) -> Iterator[Tensor]:
    """Yield a stack (T, ...) block by block (T, C), with zeros for each task's entries outside its band.

    C is a multiple of `unit`.

    >>> from merganser.linalg.thresholds import in_memory
    >>> stack = torch.tensor([[0.5, -3.0, 0.5, 9.0, 0.1]])
    >>> list(each_in_band(stack, band_of(in_memory(stack), above=[1], wanted=[2])))
    [tensor([[ 0.5000, -3.0000,  0.5000,  0.0000,  0.0000]])]
    """
    kept = 0
    for block, trimmed in zip(blocks(stack, unit), each_trimmed(stack, band.levels, unit), strict=True):
        trimmed.masked_fill_(block.abs() > _column(band.largest, block), 0)
        kept += int(trimmed.count_nonzero())
        yield trimmed
    note_kept(kept, stack.numel())


def kept(stack: Tensor, cut: Cut, change: Change | None = None) -> Tensor:
    """Mark the entries of a stack (T, ...) that the cut keeps, comparing `change` of them if it is given."""
    masks = torch.empty(stack.shape, dtype=torch.bool, device=stack.device)
    for block, out in zip(blocks(stack), blocks(masks), strict=True):
        changed = change(block) if change else block
        torch.gt(changed.abs(), _column(cut, changed), out=out)
    return masks


def _column(magnitudes: Cut, block: Tensor) -> Tensor:
    """Return one magnitude a task as a column (T, 1) that broadcasts over a block (T, C)."""
    return torch.tensor(magnitudes, dtype=block.dtype, device=block.device).unsqueeze(1)
