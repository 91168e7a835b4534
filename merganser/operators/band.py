"""Keep the middle of each task's magnitudes, layer by layer (Model Breadcrumbs, arXiv:2312.06795). Legend: T tasks."""

import torch
from torch import Tensor

from merganser.linalg.select import largest
from merganser.operators.counts import ceiling_of, count_of


def band_mask(deltas: Tensor, low: float, high: float) -> Tensor:
    """Mark, per task of (T, ...), the entries whose rank from the smallest is in [floor(low * n), ceil(high * n)).

    Ranks count from 0 among the task's n magnitudes; of equal ones the first has the highest rank.
    """
    n = deltas[0].numel()
    not_small, outliers = n - count_of(low, n), n - ceiling_of(high, n)
    return torch.stack([largest(delta, not_small) & ~largest(delta, outliers) for delta in deltas])
