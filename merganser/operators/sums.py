"""Sums over tasks, accumulated in float64.

Legend: T tasks. A float64 sum of float32 deltas is exact for all practical purposes, so the order of the tasks does not
decide whether opposite deltas cancel, which sign wins, or on which side of a threshold an entry falls.
"""

from collections.abc import Sequence

import torch
from torch import Tensor


def total(deltas: Tensor, weights: Sequence[float] | None = None) -> Tensor:
    """Add the tasks' deltas (T, ...), each times its weight (1 by default), in float64."""
    sum_ = torch.zeros(deltas.shape[1:], dtype=torch.float64, device=deltas.device)
    for delta, weight in zip(deltas, weights or [1.0] * len(deltas), strict=True):
        sum_.add_(delta, alpha=weight)
    return sum_


def scaled_sum(deltas: Tensor, scaling: float, weights: Sequence[float] | None = None) -> Tensor:
    """Add the tasks' deltas (T, ...) and scale the sum; return the deltas' dtype."""
    return total(deltas, weights).mul_(scaling).to(deltas.dtype)
