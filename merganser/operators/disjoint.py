"""The disjoint mean (TIES, arXiv:2306.01708). Legend: T tasks."""

import torch
from torch import Tensor

from merganser.operators.elect import elect_sign, settle_draws


def disjoint_mean(deltas: Tensor, sign: Tensor) -> Tensor:
    """Average, entry by entry, the non-zero deltas (T, ...) that have the elected sign, in float64; 0 without any."""
    agreed, summed = torch.zeros_like(sign), torch.zeros(sign.shape, dtype=torch.float64, device=sign.device)
    for delta in deltas:
        agrees = delta * sign > 0
        agreed += agrees
        summed += delta * agrees
    return summed.div_(agreed.clamp_(min=1))


def elected_mean(deltas: Tensor, majority: int) -> Tensor:
    """Elect a sign per entry of (T, ...), a draw going to the majority, and average who agrees; in float64."""
    return disjoint_mean(deltas, settle_draws(elect_sign(deltas), majority))
