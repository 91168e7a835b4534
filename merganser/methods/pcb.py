"""PCB-Merging: weigh each task's entries by how they compete within the task and among the tasks.

Scores are softmaxes, over whole task vectors, of the products of two tasks' deltas, normalised to [0, 1]. They need two
passes over all layers: one for the range of each pair's products, one for the log-sum-exp of each softmax. Everything
is in float64. The products of a pair are symmetric, so pairs have i <= j.
Legend: T tasks, C entries of a block, P pairs of tasks.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations_with_replacement
from math import log
from typing import NamedTuple

import torch
from torch import Tensor

from merganser.inputs.layers import LayerDeltas, LayerSource
from merganser.linalg.blocks import blocks, by_blocks
from merganser.linalg.counts import count_of
from merganser.linalg.cuts import cut_of
from merganser.merging.method import PositiveFraction, Scaling, method, spaced
from merganser.operators.sums import times
from merganser.operators.ties import over_stacks

TIED = 1e-12  # relative: scores this close differ by the rounding of their sums, which the order of the tasks decides
Pair = tuple[int, int]


class Range(NamedTuple):
    """The smallest and the largest of a pair's products."""

    low: float
    high: float

    def normalised(self, products: Tensor, times: float, less: float) -> Tensor:
        """Normalise products to [0, 1], to 0 if all are equal; return that multiplied by `times`, minus `less`."""
        times = times / (self.high - self.low) if self.high > self.low else 0.0
        return (products - self.low).mul_(times).sub_(less)


@dataclass(frozen=True)
class Softmaxes:
    """The ranges and log-sum-exps over the whole vectors that the softmaxes need."""

    ranges: dict[Pair, Range]
    within: dict[int, float]  # a task's log-sum-exp of T times its own normalised squares
    across: dict[Pair, float]  # the log-sum-exp of a pair's normalised products


def softmaxes(layers: LayerSource) -> Softmaxes:
    """Read the tasks' deltas of every layer twice."""
    tasks = len(layers.tasks)
    lows, highs = torch.stack(list(over_stacks(layers, extremes))).unbind(1)
    ends = zip(
        combinations_with_replacement(range(tasks), 2), lows.amin(0).tolist(), highs.amax(0).tolist(), strict=True
    )
    ranges = {pair: Range(low, high) for pair, low, high in ends}
    sums = torch.stack(list(over_stacks(layers, partial(exponentials, ranges=ranges)))).sum(0).tolist()
    pairs = list(zip(ranges, sums, strict=True))
    within = {i: tasks + log(summed) for (i, j), (_, summed) in pairs if i == j}
    return Softmaxes(ranges, within, {pair: 1 + log(summed) for pair, (summed, _) in pairs})


def extremes(deltas: Tensor) -> Tensor:
    """Find the smallest and the largest product of each pair of tasks in one layer (T, ...): (2, P), on the CPU.

    >>> extremes(torch.tensor([[1.0, 2.0], [-3.0, 0.5]]))
    tensor([[ 1.0000, -3.0000,  0.2500],
            [ 4.0000,  1.0000,  9.0000]], dtype=torch.float64)
    """
    ends = [torch.stack([torch.stack(product.aminmax()) for _, product in _products(b)], 1) for b in blocks(deltas)]
    lows, highs = torch.stack(ends).unbind(1)
    return torch.stack([lows.amin(0), highs.amax(0)]).cpu()


def exponentials(deltas: Tensor, ranges: dict[Pair, Range]) -> Tensor:
    """Sum exp(x - 1) and, for a task with itself, exp(T x - T) over one layer (T, ...) of normalised products x.

    Returns (P, 2), on the CPU; the second column is 0 for two different tasks.
    """
    sums = torch.zeros(len(ranges), 2, dtype=torch.float64, device=deltas.device)
    for block in blocks(deltas):
        for own, ((i, j), product) in zip(sums, _products(block), strict=True):
            own[0] += ranges[i, j].normalised(product, 1, 1).exp_().sum()
            if i == j:
                own[1] += ranges[i, j].normalised(product, len(block), len(block)).exp_().sum()
    return sums.cpu()


def scores(block: Tensor, known: Softmaxes) -> Tensor:
    """Score entries (T, C), in float64: the softmax within the task times the sum of those across all tasks."""
    within = torch.empty_like(block, dtype=torch.float64)
    across = torch.zeros_like(within)
    for (i, j), product in _products(block):
        range_ = known.ranges[i, j]
        if i == j:
            within[i] = range_.normalised(product, len(block), known.within[i]).exp_()
        softmax = range_.normalised(product, 1, known.across[i, j]).exp_()
        for task in {i, j}:
            across[task] += softmax
    return within.mul_(across)


def _products(block: Tensor) -> Iterator[tuple[Pair, Tensor]]:
    """Multiply the deltas (T, C) of each pair of tasks, entry by entry."""
    deltas = block.double()
    for i, j in combinations_with_replacement(range(len(block)), 2):
        yield (i, j), deltas[i] * deltas[j]


def balanced_mean(deltas: Tensor, weights: Tensor) -> Tensor:
    """Average the tasks' deltas (T, ...) entry by entry with weights (T, ...), in float64; 0 where all are 0.

    >>> weights = torch.tensor([[3.0, 0.0], [1.0, 0.0]], dtype=torch.float64)
    >>> balanced_mean(torch.tensor([[4.0, 1.0], [8.0, 1.0]]), weights)
    tensor([5., 0.], dtype=torch.float64)
    """
    summed, mass = (deltas * weights).sum(0), weights.sum(0)
    return torch.where(mass > 0, summed / mass, 0.0)


def least_scores(layers: LayerSource, known: Softmaxes, ratio: float) -> Tensor:
    """Find the level (T, 1) above which a task's scores are in the share `ratio` of its largest, in float64."""
    cut = cut_of(partial(over_stacks, layers), partial(count_of, ratio), partial(scores, known=known))
    return torch.tensor(cut, dtype=torch.float64).mul_(1 - TIED).unsqueeze(1)


@method(
    family="sparse",
    formula=r"\lambda \frac{\sum_t \lambda_t\, m_t \odot \beta_t \odot \Delta_t}{\sum_t m_t \odot \beta_t}, "
    r"\quad \beta_t = \mathrm{softmax}(T\, \mathrm{norm}(\Delta_t \odot \Delta_t)) "
    r"\odot \sum_j \mathrm{softmax}(\mathrm{norm}(\Delta_t \odot \Delta_j)), "
    r"\quad m_t = \mathbb{1}[\beta_t \in \mathrm{top}_r(\beta_t)]",
    involvement="VDI",
    efficiency="Medium",
    paper="Du et al., NeurIPS 2024, arXiv:2410.02396",
    law="permuting the tasks changes nothing; one coefficient for all tasks is a scaling",
    ours=("ratio", "scaling"),
    weighs=True,
    searched={"ratio": (0.05, 0.1, 0.2), "scaling": spaced(0.8, 2.2, 0.1)},
    copies=8,
)
def pcb(
    layers: LayerSource, *, ratio: PositiveFraction = 0.1, scaling: Scaling = 1.0
) -> Callable[[LayerDeltas], Tensor]:
    """Average the tasks' deltas, weighed by their scores, where a score is among the `ratio` largest of its task.

    Scores are softmaxes over the whole vector; norm brings products to [0, 1] by their least and largest, and to 0
    where all are equal, as for a task that changed nothing. Entries with one score are all kept or none. The
    `coefficients` lambda_t, of any sign, stand in the sum alone: tasks compete by their deltas as they are.
    """
    known = softmaxes(layers)
    least = least_scores(layers, known, ratio)

    def weighed(block: Tensor, weights: Sequence[float]) -> Tensor:
        kept_scores = scores(block, known)
        kept = kept_scores.mul_(kept_scores >= least.to(kept_scores.device))
        return scaling * balanced_mean(times(block.double(), weights) if weights else block, kept)

    return lambda layer: by_blocks(partial(weighed, weights=layer.weights), layer.deltas, layer.dtype)
