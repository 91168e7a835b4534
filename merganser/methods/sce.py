"""SCE: select the entries in which the tasks differ most, calculate the tasks' weights, erase minority signs.

Legend: T tasks, C entries of a block.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from merganser.inputs.layers import LayerDeltas, LayerSource
from merganser.linalg.blocks import blocks, join_pieces
from merganser.linalg.counts import count_of
from merganser.linalg.cuts import cut_of
from merganser.merging.method import PositiveFraction, Scaling, method
from merganser.operators.angles import ordered_sum, row_size, row_sums
from merganser.operators.ties import elect_sign, over_stacks, weighted_disjoint_mean


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
def sce(
    parameter: LayerSource, *, density: PositiveFraction = 1.0, scaling: Scaling = 1.0
) -> Callable[[LayerDeltas], Tensor]:
    """Average the tasks that agree in sign by their mean squares, in the entries in which the tasks differ most.

    `density` is the share kept of each parameter's entries in which any two tasks differ; at 1 all entries are kept.
    If opposite deltas cancel, the positive ones win.
    """
    select = most_varied(parameter, density)
    weights = mean_squares(parameter, select).tolist()

    def merged(block: Tensor) -> Tensor:
        selected = select(block)
        sign = elect_sign(selected, draw=1)
        return scaling * weighted_disjoint_mean(selected, sign, weights)

    return lambda piece: join_pieces(map(merged, blocks(piece.deltas)), piece.shape, piece.dtype, piece.deltas.device)


def variance(block: Tensor) -> Tensor:
    """Return the variance over tasks of each entry (T, ...), in float64; 0 exactly where all are equal.

    >>> variance(torch.tensor([[1.0, 2.0], [3.0, 2.0]])).tolist()
    [1.0, 0.0]
    """
    centred = block.double() - block[:1].double()
    return (centred - centred.mean(0)).square_().mean(0)


def most_varied(parameter: LayerSource, density: float) -> Callable[[Tensor], Tensor]:
    """Return what keeps the share of a parameter's entries (T, C) with the largest variance; the others become 0.

    The share is of those that have any variance; at 1 all entries are kept.
    """
    if density == 1:
        return lambda block: block

    def varied(stack: Tensor) -> int:
        return sum(int(variance(block).count_nonzero()) for block in blocks(stack))

    stacks = partial(over_stacks, parameter)
    wanted = count_of(density, sum(stacks(varied)))
    (level,) = cut_of(stacks, lambda _: wanted, lambda block: variance(block).unsqueeze(0))
    return lambda block: block * (variance(block) > level)


def mean_squares(parameter: LayerSource, select: Callable[[Tensor], Tensor]) -> Tensor:
    """Return the mean square of each task's entries, of which those not selected are 0, in float64 (T)."""

    def squares(stack: Tensor) -> Tensor:
        size = row_size(stack)
        return row_sums(map(select, blocks(stack, size)), size, torch.square)

    return ordered_sum(over_stacks(parameter, squares)) / max(1, parameter.entries)
