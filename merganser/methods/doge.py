"""DOGE: one correction of all task vectors by gradient steps outside the subspace that the tasks share.

Shape legend: T tasks, M rows, N columns, K directions that the tasks share.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from merganser.inputs.layers import LayerDeltas, LayerSource, SomeLayers, replace_innermost
from merganser.linalg.counts import count_of
from merganser.linalg.cuts import kept
from merganser.linalg.descent import Gradient, adam
from merganser.linalg.svd import compact, compact_each
from merganser.merging.method import Count, Densities, Fraction, LearningRate, Positive, Scaling, method
from merganser.operators.angles import squared_lengths
from merganser.operators.ties import vector_cut
from merganser.operators.vectors import scaled_mean

ROUNDING = 4 * torch.finfo(torch.float64).eps  # of a product's largest entry, for each number that it is a sum of
TIED = 1e-6  # relative: singular values this close are equal, and their directions are shared together


@method(
    family="spectral",
    formula=r"\lambda \sum_t \lambda_t\, m_t \odot (\Delta_t + D), \quad \lambda_t = l / \lVert \Delta_t \rVert_F, "
    r"\quad D \text{ by gradient steps outside } S \text{ on } \sum_{t, r} \Bigl(\sum_c \Delta_t^{r c} "
    r"\bigl(\Delta_t - \sum_j \lambda_j (\Delta_j + D)\bigr)^{r c}\Bigr)^2",
    paper="Wei et al., ICML 2025, arXiv:2501.01230",
    law="without steps it adds up each task's largest entries, at one length",
    cost="gradient steps",
    vectors=scaled_mean,
    ours=("scaling",),
    copies=12,
)
def doge(
    layers: LayerSource,
    *,
    length: Positive = 0.07,
    density: Densities = 0.3,
    common_fraction: Fraction = 1 / 6,
    steps: Count = 400,
    lr: LearningRate = 1e-4,
    scaling: Scaling = 1.0,
) -> Callable[[LayerDeltas], Tensor]:
    """Bring the tasks' matrices to one length, correct all by the same matrix, add up each task's largest entries.

    The correction lessens, row by row, how far the merge is from each task along the task's own delta. It moves outside
    the subspace that the tasks share: the leading left directions of each task's R // T, the share `common_fraction` of
    R in all. `density` is a share of all matrices' entries. Parameters that are not matrices are averaged;
    the authors' code leaves them at the base's weights, and keeps one entry more of each task.
    """
    chosen = [name for name in layers.names if layers.kinds[name] == "matrix"]
    cut = vector_cut(replace_innermost(layers, partial(SomeLayers, chosen=chosen)), density) if chosen else ()

    def merge(layer: LayerDeltas) -> Tensor:
        norms = squared_lengths(layer.deltas).sqrt()
        weights = torch.where(norms > 0, length / norms, 0.0)
        gradient = conflict(layer.deltas, weights, shared_directions(layer.deltas, common_fraction))
        correction = adam(torch.zeros_like(layer.deltas[0]), gradient, steps, lr)
        merged = torch.zeros_like(correction)
        for delta, weight, mask in zip(layer.deltas, weights, kept(layer.deltas, cut), strict=True):
            merged += weight * (delta + correction).mul_(mask)
        return merged.mul_(scaling).to(layer.dtype)

    return merge


def shared_directions(deltas: Tensor, common_fraction: float) -> Tensor:
    """Return the left directions (M, K) that the leading ones of the tasks' matrices (T, M, N) have most in common.

    As many as the fraction is of R, and those as common as the last of them.

    >>> shared_directions(torch.diag(torch.tensor([3.0, 2.0])).repeat(2, 1, 1), 0.5).abs().round(decimals=4).tolist()
    [[1.0], [0.0]]
    """
    tasks, rows, columns = deltas.shape
    count, rank_each = count_of(common_fraction, min(rows, columns)), min(rows, columns) // tasks
    stacked = torch.cat([own.u for own in compact_each(deltas, rank_each)], 1)
    if count == 0 or stacked.shape[1] == 0:
        return stacked[:, :0]
    u, s, _ = compact(stacked, exact_to=deltas.dtype)
    return u[:, s >= s[min(count, len(s)) - 1] * (1 - TIED)]


def conflict(deltas: Tensor, weights: Tensor, shared: Tensor) -> Gradient:
    """Return the gradient of the tasks' conflicts at a correction (M, N), outside the span of `shared` (M, K).

    A task's conflict is the sum over rows of the squared inner product of its delta with its distance from the merge.
    0 where the gradient is no more than rounding errors, which Adam would take for a direction.
    """
    rows, summed = deltas.transpose(0, 1).double().contiguous(), float(weights.sum())  # (M, T, N)
    whole = weights @ rows
    squares = rows.square().sum(2, keepdim=True)
    products = squares + squares.sqrt() * torch.linalg.vector_norm(whole, dim=1).view(-1, 1, 1)
    largest = max(map(abs, map(float, deltas.aminmax()))) * products.sum(1).amax()
    rounding = ROUNDING * deltas.shape[2] * 2 * summed * largest

    def gradient(correction: Tensor) -> Tensor:
        merged = whole + summed * correction
        distances = squares - rows @ merged.unsqueeze(2)  # (M, T, 1)
        disagreement = (distances.mT @ rows).squeeze(1).mul_(-2 * summed)
        disagreement = disagreement - shared @ (shared.mT @ disagreement)
        return disagreement.masked_fill_(disagreement.abs() <= rounding, 0)

    return gradient
