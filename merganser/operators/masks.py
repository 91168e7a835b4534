"""Which entries of the summed task vector a task wants (TALL masks, arXiv:2405.07813). Legend: T tasks."""

import torch
from torch import Tensor

from merganser.operators.sums import total


def tall_mask(delta: Tensor, summed: Tensor, tall_lambda: float) -> Tensor:
    """Mark the entries that are at least `tall_lambda` times as large as what the other tasks make together."""
    return delta.abs() >= tall_lambda * (summed - delta).abs()


def wanted_by(deltas: Tensor, tall_lambda: float) -> Tensor:
    """Count, entry by entry, the tasks (T, ...) whose TALL mask is set."""
    summed = total(deltas)
    wanted = torch.zeros(summed.shape, dtype=torch.int64, device=summed.device)
    for delta in deltas:
        wanted += tall_mask(delta.to(summed.dtype), summed, tall_lambda)
    return wanted
