"""The disjoint mean (TIES, arXiv:2306.01708). Legend: T tasks, C entries of a block."""

import torch
from torch import Tensor

from merganser.linalg.patterns import levels_of
from merganser.linalg.select import Cut
from merganser.operators.elect import settled_sign


def elected_mean(block: Tensor, majority: int) -> Tensor:
    """Elect a sign per entry of (T, C), a draw going to the majority, and average who agrees; in float64.

    Zeros agree with nobody; where nobody agrees the mean is 0.
    """
    sign = settled_sign(block, majority)
    agreeing = (block * sign).clamp_(min=0)
    mean = agreeing.sum(0, dtype=torch.float64).mul_(sign)
    # Counted as numbers: torch's comparisons into truth values take several times as long.
    return mean.div_(agreeing.gt_(0).sum(0, dtype=torch.float32).clamp_(min=1))


def trimmed_mean(stack: Tensor, cut: Cut, majority: int, scaling: float) -> Tensor:
    """Do the same with a stack (T, ...) trimmed by a cut without ties, and scale it: in one loop and its own dtype."""
    from merganser.linalg import loops

    mean = torch.empty(stack.shape[1:], dtype=stack.dtype)
    values = stack.reshape(len(stack), -1).contiguous()
    levels = levels_of(cut.patterns, values)
    loops.trimmed_mean(values.numpy(), levels.numpy(), majority, scaling, mean.view(-1).numpy())
    return mean
