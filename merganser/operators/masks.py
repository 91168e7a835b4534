"""Which entries of a merged task vector a task wants (TALL masks, arXiv:2405.07813). Legend: T tasks."""

import torch
from torch import Tensor


def tall_mask(delta: Tensor, merged: Tensor, tall_lambda: float | Tensor) -> Tensor:
    """Mark a task's entries, or T tasks', that are at least `tall_lambda` times what the merge has beside them.

    `merged` is unscaled, and in float64 where it comes from `inner.merge`: the comparison is made in that.
    """
    delta = delta.to(merged.dtype)
    return delta.abs() >= (merged - delta).abs_().mul_(tall_lambda)


def wanted_by(deltas: Tensor, merged: Tensor, tall_lambda: float) -> Tensor:
    """Count, entry by entry, the tasks (T, ...) whose TALL mask over the merged vector is set."""
    return tall_mask(deltas, merged, tall_lambda).sum(0, dtype=torch.int32)
