"""The disjoint mean (TIES, arXiv:2306.01708). Legend: T tasks, C entries of a block."""

import torch
from torch import Tensor

from merganser.operators.blocks import blocks, joined
from merganser.operators.elect import settled_sign


def disjoint_mean(deltas: Tensor, sign: Tensor) -> Tensor:
    """Average, entry by entry, the non-zero deltas (T, ...) that have the elected sign, in float64; 0 without any."""
    stacks = blocks(deltas)
    signs = sign.reshape(-1).split(stacks[0].shape[1] or 1)
    means = (_mean(block, own) for block, own in zip(stacks, signs, strict=True))
    return joined(means, sign.shape, torch.float64, sign.device)


def elected_mean(block: Tensor, majority: int) -> Tensor:
    """Elect a sign per entry of (T, C), a draw going to the majority, and average who agrees; in float64."""
    return _mean(block, settled_sign(block, majority))


def _mean(block: Tensor, sign: Tensor) -> Tensor:
    agreeing = (block * sign).clamp_(min=0)
    agreed = (agreeing > 0).sum(0, dtype=torch.int32).clamp_(min=1)
    return agreeing.sum(0, dtype=torch.float64).mul_(sign).div_(agreed)
