"""Which entries of a merged task vector a task wants (TALL masks, arXiv:2405.07813). Legend: T tasks."""

import torch
from torch import Tensor


def tall_mask(delta: Tensor, merged: Tensor, tall_lambda: float) -> Tensor:
    """Mark a task's entries that are at least `tall_lambda` times as large as what the merge has beside them.

    `merged` is unscaled, and in float64 where it comes from `inner.merge`: the comparison is made in that.
    """
    delta = delta.to(merged.dtype)
    return delta.abs() >= tall_lambda * (merged - delta).abs()


def wanted_by(deltas: Tensor, merged: Tensor, tall_lambda: float) -> Tensor:
    """Count, entry by entry, the tasks (T, ...) whose TALL mask over the merged vector is set."""
    wanted = torch.zeros(merged.shape, dtype=torch.int64, device=merged.device)
    for delta in deltas:
        wanted += tall_mask(delta, merged, tall_lambda)
    return wanted
