"""Stitch sparse regions together (Localize-and-Stitch, arXiv:2408.13656). Legend: T tasks."""

import torch
from torch import Tensor

from merganser.linalg.blocks import blocks, join_pieces
from merganser.operators.trim import Sparse, blocks_of


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
