"""Masks of the entries that matter to a task: TALL masks, EMR-Merging and Localize-and-Stitch.

TALL masks are of arXiv:2405.07813, EMR-Merging's of arXiv:2405.17461, stitched regions of arXiv:2408.13656.

Legend: T tasks, C entries of a block.
"""

from collections.abc import Iterator
from typing import Literal

import torch
from torch import Tensor

from merganser.inputs.layers import LayerDeltas
from merganser.linalg.blocks import blocks, join_pieces
from merganser.operators.ties import Sparse, blocks_of, elect_sign


def tall_masks(deltas: Tensor, merged: Tensor, tall_lambda: float | Tensor) -> Tensor:
    """Mark each task's entries (T, ...) with |delta| >= tall_lambda * |merged - delta|.

    `tall_lambda` is one number, or one for each task (T). The comparison is in the dtype of `merged` (...).

    >>> tall_masks(torch.tensor([[1.0, 4.0], [4.0, 1.0]]), torch.tensor([5.0, 5.0]), 1.0)
    tensor([[False,  True],
            [ True, False]])
    """
    masks = torch.empty(deltas.shape, dtype=torch.bool, device=deltas.device)
    for mask, out in zip(_each_mask(deltas, merged, tall_lambda), blocks(masks), strict=True):
        out.copy_(mask)
    return masks


def mask_counts(deltas: Tensor, merged: Tensor, tall_lambda: float) -> Tensor:
    """Count, entry by entry, the tasks (T, ...) whose TALL mask over the merged vector (...) is set.

    >>> mask_counts(torch.tensor([[1.0, 4.0], [4.0, 1.0]]), torch.tensor([5.0, 5.0]), 0.2)
    tensor([2, 2], dtype=torch.int32)
    """
    counts = (mask.sum(0, dtype=torch.int32) for mask in _each_mask(deltas, merged, tall_lambda))
    return join_pieces(counts, deltas.shape[1:], torch.int32, deltas.device)


def _each_mask(deltas: Tensor, merged: Tensor, tall_lambda: float | Tensor) -> Iterator[Tensor]:
    """Yield the masks (T, C) block by block."""
    factors = tall_lambda.to(deltas.device).unsqueeze(1) if isinstance(tall_lambda, Tensor) else tall_lambda
    start, flat = 0, merged.flatten()
    for block in blocks(deltas):
        exact = block.to(merged.dtype)
        beside = flat[start : start + block.shape[1]] - exact
        yield exact.abs() >= beside.abs_().mul_(factors)
        start += block.shape[1]


def stitch(regions: Sparse) -> Tensor:
    """Average each entry (T, ...) over the tasks in which it is not zero.

    >>> stitch(torch.tensor([[2.0, 0.0, 0.0], [4.0, 1.0, 0.0]]))
    tensor([3., 1., 0.])
    """
    return join_pieces(map(_stitched, blocks_of(regions)), regions.shape[1:], regions.dtype, regions.device)


def stitch_masked(deltas: Tensor, masks: Tensor) -> Tensor:
    """Average each entry (T, ...) over the tasks whose masks (T, ...) keep it, be it zero; soft masks are weights.

    Weights that add up to less than one are not raised to it: a single task keeps its delta times its mask.

    >>> stitch_masked(torch.tensor([[2.0, 0.0, 8.0], [4.0, 1.0, 4.0]]), torch.tensor([[1, 1, 0], [1, 1, 0]]))
    tensor([3.0000, 0.5000, 0.0000])
    """
    pieces = map(_shared, blocks(deltas), blocks(masks))
    return join_pieces(pieces, deltas.shape[1:], deltas.dtype, deltas.device)


def _stitched(block: Tensor) -> Tensor:
    claims = (block != 0).sum(0, dtype=torch.int32)
    return block.sum(0, dtype=torch.float64).div_(claims.clamp_(min=1))


def _shared(block: Tensor, weights: Tensor) -> Tensor:
    weights = weights.double()
    return (block.double() * weights).sum(0).div_(weights.sum(0).clamp_(min=1))


Rescaler = Literal["magnitude", "least_squares"]  # keep a task's total magnitude, or come nearest to its delta


def aligned(block: Tensor) -> tuple[Tensor, Tensor]:
    """Return the elected sign (C,), and the tasks' deltas (T, C) times it: those above 0 agree."""
    sign = elect_sign(block)
    return sign, block * sign


def elected(block: Tensor) -> Tensor:
    """Take, entry by entry, the largest magnitude among the tasks (T, ...) of the elected sign, with that sign.

    >>> elected(torch.tensor([[4.0, -1.0, 1.0], [1.0, -3.0, -1.0]]))
    tensor([ 4., -3.,  0.])
    """
    sign, agreeing = aligned(block)
    return agreeing.amax(0).clamp_(min=0).mul_(sign)


def agrees(deltas: Tensor, unified: Tensor) -> Tensor:
    """Mark the entries (T, ...) in which a task has the unified vector's sign."""
    return deltas * unified.sign() > 0


def sides(layer: LayerDeltas, rescaler: Rescaler) -> Tensor:
    """Sum, in float64, what each task's rescaler divides, and what it divides by: (2, T).

    The magnitudes of the task's own entries and of the elected ones under its mask; or the product of both vectors and
    the square of the latter.
    """
    sums = torch.zeros(2, len(layer.tasks), dtype=torch.float64, device=layer.deltas.device)
    for block in blocks(layer.deltas):
        agreeing = aligned(block)[1]
        masked = agreeing.sign().clamp_(min=0).mul_(agreeing.amax(0))
        if rescaler == "magnitude":
            pair = (block.abs(), masked)
        else:
            exact = masked.double()
            pair = (agreeing * exact, exact.square())
        sums += torch.stack([side.sum(1, dtype=torch.float64) for side in pair])
    return sums


def ratio(sums: Tensor) -> Tensor:
    """Divide the sums (2, T) of a whole vector: T rescalers, 0 of a task whose mask is empty."""
    own, masked = sums
    return torch.where(masked > 0, own / masked, 0)
