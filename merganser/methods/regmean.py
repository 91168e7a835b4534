"""RegMean: the linear map that comes nearest to every task's own on that task's inputs.

Legend: T tasks, M outputs, K inputs.
"""

from collections.abc import Iterable

import torch
from torch import Tensor

from merganser.inputs.layers import LayerDeltas
from merganser.merging.method import Fraction, Scaling, method
from merganser.operators.vectors import scaled_mean

FLOOR = 1e-6  # of the mean of the diagonal of the summed Gram matrices
RIDGE = 1e-12  # of the same, where the sum has no Cholesky factor; a hundred times as much until it has one


@method(
    statistics=("gram",),
    family="statistics",
    formula=r"\lambda \Bigl(\sum_t \Delta_t \hat G_t\Bigr) \Bigl(\sum_t \hat G_t\Bigr)^{-1}, "
    r"\quad \hat G_t = a \, G_t + (1 - a) \operatorname{diag} G_t",
    paper="Jin et al., ICLR 2023, arXiv:2212.09849",
    law="equal inputs give the average; ratio 1 gives the least squares solution",
    cost="linear system",
    involvement="VDI",
    vectors=scaled_mean,
    copies=7,
)
def regmean(layer: LayerDeltas, *, ratio: Fraction = 0.9, scaling: Scaling = 1.0) -> Tensor:
    """Merge each linear map so that on the tasks' own inputs it is nearest to what the tasks' own maps give.

    G_t is the mean of x x^T over the inputs x of task t's map. `ratio` is a, what is kept of G off its diagonal: 0.9 in
    the paper, which has no CLIP; FusionBench takes 0.95 for CLIP. A map of which no inputs were seen is averaged, as
    all other parameters are.
    """
    gram, side = layer.statistics.measured.get("gram"), layer.statistics.side
    if gram is None:
        return scaled_mean(layer, scaling=scaling)
    inputs_last = layer.deltas if side == "columns" else layer.deltas.mT
    merged = scaling * nearest_map(inputs_last, shrunk(gram, ratio))
    return merged if side == "columns" else merged.mT


def shrunk(grams: Tensor, ratio: float) -> Iterable[Tensor]:
    """Give each Gram matrix (T, K, K) with its entries off the diagonal times the ratio, in float64.

    >>> [each.tolist() for each in shrunk(torch.tensor([[[2.0, 1.0], [1.0, 4.0]]]), 0.5)]
    [[[2.0, 0.5], [0.5, 4.0]]]
    """
    for gram in grams:
        values = gram.double()
        diagonal = values.diagonal().clone()
        values = values * ratio
        values.diagonal().copy_(diagonal)
        yield values


def nearest_map(maps: Tensor, grams: Iterable[Tensor]) -> Tensor:
    """Return the map (M, K) nearest to the tasks' own (T, M, K) in the mean of its outputs' squared distances.

    Each task's inputs x are given by the mean of x x^T (T of (K, K), float64). What the diagonal of their sum lacks is
    added to every task's alike, so an input that is never there is averaged. Solved for the distance from the average.

    >>> nearest_map(torch.tensor([[[4.0]], [[0.0]]]), torch.tensor([[[3.0]], [[1.0]]]).double())
    tensor([[3.]])
    """
    total = torch.zeros(maps.shape[2], maps.shape[2], dtype=torch.float64, device=maps.device)
    moved = torch.zeros(maps.shape[1:], dtype=torch.float64, device=maps.device)
    average = maps.mean(dim=0, dtype=torch.float64)
    for each, gram in zip(maps, grams, strict=True):
        total.add_(gram)
        moved.addmm_(each.double() - average, gram)
    diagonal = total.diagonal()
    size = float(diagonal.mean()) or 1.0
    lack = (FLOOR * size - diagonal).clamp_(min=0)
    factor, ridge = torch.linalg.cholesky_ex(total + lack.diag()), RIDGE * size
    while factor.info and ridge <= size:
        lack, ridge = lack + ridge, 100 * ridge
        factor = torch.linalg.cholesky_ex(total + lack.diag())
    return (average + torch.cholesky_solve(moved.mT, factor.L).mT).to(maps.dtype)
