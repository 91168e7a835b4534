"""Keep the middle of each task's magnitudes, layer by layer (Model Breadcrumbs, arXiv:2312.06795). Legend: T tasks."""

from collections.abc import Iterator, Sequence

from torch import Tensor

from merganser.linalg.counts import ceiling_of, count_of
from merganser.linalg.select import cuts, each_trimmed
from merganser.linalg.thresholds import InMemory


def each_band(deltas: Tensor, low: Sequence[float], high: Sequence[float]) -> Iterator[Tensor]:
    """Yield the deltas (T, ...) in blocks (T, C), with zeros for the entries outside the band.

    A task's band holds the entries whose rank from the smallest is in [floor(low * n), ceil(high * n)), with its own of
    the T `low` and `high`. Ranks count from 0 among the task's n magnitudes; of equal ones the first has the highest.

    >>> import torch
    >>> list(each_band(torch.tensor([[0.1, -3.0, 0.5, 9.0]]), [0.25], [0.75]))
    [tensor([[ 0.0000, -3.0000,  0.5000,  0.0000]])]
    """
    n = deltas[0].numel()
    not_small = _each_of_largest(deltas, [n - count_of(each, n) for each in low])
    all_outliers = _each_of_largest(deltas, [n - ceiling_of(each, n) for each in high])
    for block, outliers in zip(not_small, all_outliers, strict=True):
        yield block.sub_(outliers)


def _each_of_largest(deltas: Tensor, counts: Sequence[int]) -> Iterator[Tensor]:
    """Yield so many of each task's largest entries, in blocks (T, C) with zeros for the others."""
    (cut,) = cuts(InMemory(lambda: [deltas]), lambda _: counts)
    return each_trimmed(deltas, cut)
