"""How many singular values a truncation keeps by what they hold of the whole (STAR, arXiv:2502.10339)."""

from torch import Tensor

ROUNDING = 1e-12  # a cumulative sum may stay this share below its own total


def triples_holding(s: Tensor, eta: float) -> int:
    """Count the leading singular values that together hold the share `eta` of the nuclear norm.

    >>> import torch
    >>> triples_holding(torch.tensor([3.0, 2.0, 1.0]), 0.5)
    1
    """
    held = s.double().cumsum(0)
    return min(int((held < eta * (1 - ROUNDING) * held[-1:]).sum()) + 1, len(s))
