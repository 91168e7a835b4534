"""Arcee Fusion: keep the entries of a task vector whose importance sticks out.

An entry's importance is its size times how far its row's softmax moved from the base's, by the Kullback-Leibler
divergence. Legend: G rows, C entries of a row.
"""

import torch
from torch import Tensor

from merganser.inputs.layers import LayerDeltas
from merganser.linalg.blocks import BLOCK
from merganser.merging.method import Scaling, method
from merganser.operators.angles import base_vectors, grouped, ungrouped

SMALL = 1e-8  # added to probabilities before their logarithm
FENCE = 1.5  # interquartile ranges above the median


@method(
    on_models=True,
    family="sparse",
    formula=r"\lambda \sum_t \mathbb{1}\big[s_t \ge \mathrm{Q}_2 + 1.5 (\mathrm{Q}_3 - \mathrm{Q}_1)\big] \odot "
    r"\Delta_t, \quad s_t = |\Delta_t| \cdot \mathrm{KL}(\mathrm{softmax}\, W_t \,\Vert\, \mathrm{softmax}\, W_0)",
    paper="none (Arcee AI's, in mergekit)",
    law="a task of which all entries matter alike is kept whole; what is kept of a task is its own entry",
    ours=("scaling",),
)
def arcee_fusion(layer: LayerDeltas, *, scaling: Scaling = 1.0) -> Tensor:
    """Add each task's entries whose importance is beyond the median by 1.5 times the interquartile range.

    An entry's importance is its size times the divergence of its row's softmax from the base's; the quartiles are those
    of its parameter. Published for one task; of several, what is kept is added up.
    """
    base, rows = base_vectors(layer, "row"), grouped(layer.deltas, "row")
    merged = torch.zeros(base.shape, dtype=torch.float64, device=base.device)
    for delta in rows:
        scores = importances(delta, base)
        merged += delta * (scores >= fence(scores.flatten()))
    return ungrouped(merged.mul_(scaling), layer.shape, "row").to(layer.dtype)


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
