"""Arcee Fusion: keep the entries of a task vector whose importance sticks out.

An entry's importance is its size times how far its row's softmax moved from the base's, by the Kullback-Leibler
divergence. Legend: G rows, C entries of a row.
"""

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor

from merganser.inputs.layers import LayerDeltas, LayerSource
from merganser.linalg.blocks import BLOCK
from merganser.linalg.thresholds import Stacks, thresholds
from merganser.merging.method import Scaling, method
from merganser.operators.angles import grouped, ungrouped, vectors_of

R = TypeVar("R")
SMALL = 1e-8  # added to probabilities before their logarithm
QUARTILES = (0.25, 0.5, 0.75)
FENCE = 1.5  # interquartile ranges above the median


@method(
    on_models=True,
    family="sparse",
    formula=r"\lambda \sum_t \mathbb{1}\big[s_t \ge \mathrm{Q}_2 + 1.5 (\mathrm{Q}_3 - \mathrm{Q}_1)\big] \odot "
    r"\Delta_t, \quad s_t = |\Delta_t| \cdot \mathrm{KL}(\mathrm{softmax}\, W_t \,\Vert\, \mathrm{softmax}\, W_0)",
    paper="none (Arcee AI's, in mergekit)",
    law="a task of which all entries matter alike is kept whole; what is kept of a task is its own entry",
    ours=("scaling",),
    copies=8,
)
def arcee_fusion(parameter: LayerSource, *, scaling: Scaling = 1.0) -> Callable[[LayerDeltas], Tensor]:
    """Add each task's entries whose importance is beyond the median by 1.5 times the interquartile range.

    An entry's importance is its size times the divergence of its row's softmax from the base's; the quartiles are those
    of its parameter. Published for one task; of several, what is kept is added up.
    """
    moved = dict(parameter.map(lambda piece: (piece.name, divergences(*vectors_of(piece, "row", "models")))))

    def scores(piece: LayerDeltas) -> Tensor:
        return importances(grouped(piece.deltas, "row"), moved[piece.name].to(piece.deltas.device))

    each_fence = fences(
        lambda function: parameter.map(lambda piece: function(scores(piece))), len(parameter.tasks), parameter.entries
    )

    def merge(piece: LayerDeltas) -> Tensor:
        deltas = grouped(piece.deltas, "row")
        merged = torch.zeros(deltas.shape[1:], dtype=torch.float64, device=deltas.device)
        for delta, score, fence in zip(deltas, scores(piece), each_fence, strict=True):
            merged += delta * (score >= fence)
        return ungrouped(merged.mul_(scaling), piece.shape, "row").to(piece.dtype)

    return merge


def divergences(vectors: Tensor, start: Tensor | None) -> Tensor:
    """Return how far the softmax of each row of the tasks (T, G, C) moved from the base's (G, C), in float64 (T, G).

    >>> divergences(torch.tensor([[[0.0, 1.0], [0.0, 0.0]]]), torch.zeros(2, 2)).round(decimals=4)
    tensor([[0.1109, 0.0000]], dtype=torch.float64)
    """
    assert start is not None, "the vectors are the models' weights"
    divergence = torch.empty(vectors.shape[:2], dtype=torch.float64, device=vectors.device)
    rows = max(1, BLOCK // max(1, vectors.shape[2])) if vectors.device.type == "cpu" else max(1, vectors.shape[1])
    for task, out in zip(vectors, divergence, strict=True):
        for moved, base, out_rows in zip(task.split(rows), start.split(rows), out.split(rows), strict=True):
            weights = base.double()
            tuned = (weights + moved).softmax(-1) + SMALL
            out_rows.copy_((tuned * (tuned / (weights.softmax(-1) + SMALL)).log()).sum(-1))
    return divergence.clamp_(min=0)  # it is never below, but for rounding


def importances(vectors: Tensor, moved: Tensor) -> Tensor:
    """Score the entries of the tasks' rows (T, G, C) by their size and their row's divergence (T, G), in float64.

    >>> importances(torch.tensor([[[0.0, -2.0]]]), torch.tensor([[0.5]]).double())
    tensor([[[0., 1.]]], dtype=torch.float64)
    """
    return vectors.double().abs_().mul_(moved.unsqueeze(2))


def fences(scores: Stacks, tasks: int, n: int) -> list[float]:
    """Return the median of each task's n scores (T, ...) plus 1.5 times their interquartile range.

    What is above it sticks out. Quantiles are entries: of n, the one at floor(q * (n - 1)) from the smallest, counted
    from 0.

    >>> from merganser.linalg.thresholds import in_memory
    >>> fences(in_memory(torch.tensor([[5.0, 1.0, 2.0, 3.0, 4.0]])), 1, 5)
    [6.0]
    """
    ranks = [n - int(q * (n - 1)) for q in QUARTILES]
    quartiles = iter(thresholds(scores, lambda _: ranks * tasks).least)
    return [median + FENCE * (high - low) for low, median, high in zip(quartiles, quartiles, quartiles, strict=True)]
