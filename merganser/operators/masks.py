"""Masks of the entries of a merged task vector that matter to a task (TALL masks, arXiv:2405.07813). T tasks."""

from collections.abc import Iterator

import torch
from torch import Tensor

from merganser.linalg.blocks import blocks, join_pieces


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
