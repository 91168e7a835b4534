"""Stitch sparse regions together (Localize-and-Stitch, arXiv:2408.13656). Legend: T tasks."""

import torch
from torch import Tensor

from merganser.linalg.blocks import joined
from merganser.operators.trim import Sparse, blocks_of


def stitch(regions: Sparse) -> Tensor:
    """Average each entry (T, ...) over the tasks in which it is not zero.

    >>> stitch(torch.tensor([[2.0, 0.0, 0.0], [4.0, 1.0, 0.0]]))
    tensor([3., 1., 0.])
    """
    return joined(map(_stitched, blocks_of(regions)), regions.shape[1:], regions.dtype, regions.device)


def _stitched(block: Tensor) -> Tensor:
    claims = (block != 0).sum(0, dtype=torch.int32)
    return block.sum(0, dtype=torch.float64).div_(claims.clamp_(min=1))
