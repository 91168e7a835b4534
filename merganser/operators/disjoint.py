"""The disjoint mean (TIES, arXiv:2306.01708). Legend: T tasks."""

import torch
from torch import Tensor


def disjoint_mean(deltas: Tensor, sign: Tensor) -> Tensor:
    """Average, entry by entry, the non-zero deltas (T, ...) that have the elected sign; 0 where none has."""
    agreed, summed = torch.zeros_like(sign), torch.zeros(sign.shape, dtype=torch.float64, device=sign.device)
    for delta in deltas:
        agrees = delta * sign > 0
        agreed += agrees
        summed += delta * agrees
    return (summed / agreed.clamp_(min=1)).to(deltas.dtype)
