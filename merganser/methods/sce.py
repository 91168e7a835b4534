"""SCE: select the entries in which the tasks differ most, calculate the tasks' weights, erase minority signs.

Legend: T tasks, C entries of a block.
"""

import torch
from torch import Tensor

from merganser.inputs.layers import LayerDeltas
from merganser.linalg.blocks import by_blocks
from merganser.linalg.counts import count_of
from merganser.linalg.thresholds import cut_of, in_memory, kept
from merganser.merging.method import PositiveFraction, Scaling, method
from merganser.operators.angles import squared_lengths
from merganser.operators.ties import elect_sign, weighted_disjoint_mean


@method(
    family="sparse",
    formula=r"\lambda \frac{\sum_{t \in A} \eta_t \hat\Delta_t}{\sum_{t \in A} \eta_t}, "
    r"\quad \hat\Delta_t = m \odot \Delta_t, \quad m = \mathbb{1}\big[\mathrm{Var}_t \Delta_t \in \mathrm{top}_d\big], "
    r"\quad \eta_t = \overline{\hat\Delta_t^2}, "
    r"\quad A = \{t : \mathrm{sgn}\, \hat\Delta_t = \mathrm{sgn} \sum_j \hat\Delta_j\}",
    paper="Wan et al., 2024, arXiv:2408.07990",
    law="one task at density 1 is its own model; equal models at density 1 too",
    ours=("scaling",),
)
def sce(layer: LayerDeltas, *, density: PositiveFraction = 1.0, scaling: Scaling = 1.0) -> Tensor:
    """Average the tasks that agree in sign by their mean squares, in the entries in which the tasks differ most.

    `density` is the share kept of each parameter's entries in which any two tasks differ; at 1 all entries are kept.
    Where opposite deltas cancel, the positive ones win.
    """
    selected = most_varied(layer.deltas, density)
    weights = mean_squares(selected).tolist()
    sign = elect_sign(selected, draw=1)
    return scaling * weighted_disjoint_mean(selected, sign, weights)


def variances(deltas: Tensor) -> Tensor:
    """Return the variance over tasks of each entry (T, ...), in float64; 0 exactly where all are equal.

    >>> variances(torch.tensor([[1.0, 2.0], [3.0, 2.0]])).tolist()
    [1.0, 0.0]
    """

    def variance(block: Tensor) -> Tensor:
        centred = block.double() - block[:1].double()
        return (centred - centred.mean(0)).square_().mean(0)

    return by_blocks(variance, deltas, torch.float64)


def most_varied(deltas: Tensor, density: float) -> Tensor:
    """Keep the share of the entries (T, ...) with the largest variance over tasks; the others become 0.

    The share is of those that have any variance; at 1 all entries are kept.

    >>> most_varied(torch.tensor([[1.0, 5.0, 4.0], [0.0, -5.0, 4.0]]), 0.5)
    tensor([[ 0.,  5.,  0.],
            [ 0., -5.,  0.]])
    """
    if density == 1:
        return deltas
    spread = variances(deltas).reshape(1, -1)
    cut = cut_of(in_memory(spread), lambda _: count_of(density, int(spread.count_nonzero())))
    return deltas * kept(spread, cut).view(deltas.shape[1:])


def mean_squares(deltas: Tensor) -> Tensor:
    """Return the mean square of each task's entries (T, ...), in float64 (T).

    >>> mean_squares(torch.tensor([[3.0, 1.0], [0.0, 0.0]]))
    tensor([5., 0.], dtype=torch.float64)
    """
    return squared_lengths(deltas) / max(1, deltas[0].numel())
