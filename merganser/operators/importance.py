"""How much an entry of a task's model matters beside the base: Arcee Fusion's score.

It is the delta's size times how far the row's softmax moved, by the Kullback-Leibler divergence.
Legend: G rows, C entries of a row.
"""

import torch
from torch import Tensor

from merganser.linalg.blocks import BLOCK

SMALL = 1e-8  # added to probabilities before their logarithm
FENCE = 1.5  # interquartile ranges above the median


def importances(delta: Tensor, start: Tensor) -> Tensor:
    """Score the entries of one task's rows (G, C) on a base's (G, C), in float64.

    >>> importances(torch.tensor([[0.0, 1.0], [0.0, 0.0]]), torch.zeros(2, 2)).round(decimals=4)
    tensor([[0.0000, 0.1109],
            [0.0000, 0.0000]], dtype=torch.float64)
    """
    found = torch.empty(delta.shape, dtype=torch.float64, device=delta.device)
    rows = max(1, BLOCK // max(1, delta.shape[1])) if delta.device.type == "cpu" else max(1, len(delta))
    for moved, base, out in zip(delta.split(rows), start.split(rows), found.split(rows), strict=True):
        weights = base.double()
        tuned = (weights + moved).softmax(-1) + SMALL
        divergence = (tuned * (tuned / (weights.softmax(-1) + SMALL)).log()).sum(-1, keepdim=True)
        torch.mul(moved.double().abs(), divergence, out=out)
    return found


def fence(scores: Tensor) -> float:
    """Return the median of scores (n,) plus 1.5 times their interquartile range: what is above it sticks out.

    Quantiles are entries: of n, the one at floor(q * (n - 1)) from the smallest, counted from 0.

    >>> fence(torch.tensor([5.0, 1.0, 2.0, 3.0, 4.0]))
    6.0
    """
    low, median, high = (float(scores.kthvalue(1 + int(q * (len(scores) - 1))).values) for q in (0.25, 0.5, 0.75))
    return median + FENCE * (high - low)
