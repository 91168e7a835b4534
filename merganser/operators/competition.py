"""How much each entry counts within its task and among the tasks (PCB-Merging, arXiv:2410.02396).

The scores are softmaxes over whole task vectors, of the products of two tasks' deltas brought to [0, 1]. Two passes
over the layers learn what those need to know of all entries: each product's range, then each softmax's log-sum-exp.
Everything is in float64. Products of i and j and of j and i are one: pairs have i <= j. Legend: T tasks.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import log

import torch
from torch import Tensor

Pair = tuple[int, int]
Range = tuple[float, float]


@dataclass(frozen=True)
class Softmaxes:
    """What the softmaxes need to know of the whole vectors."""

    ranges: dict[Pair, Range]  # the least and the largest product
    within: dict[int, float]  # a task's log-sum-exp of T times its own normalised squares
    across: dict[Pair, float]  # the log-sum-exp of a pair's normalised products


def softmaxes(layers: Iterable[Tensor], tasks: int) -> Softmaxes:
    """Read the tasks' deltas (T, ...) of every layer twice."""
    ranges = ranges_of(layers)
    within, across = dict.fromkeys(range(tasks), 0.0), dict.fromkeys(ranges, 0.0)
    for deltas in layers:
        for (i, j), product in products(deltas):
            below = normalised(product, ranges[i, j]) - 1  # at most 0: no exponential overflows
            across[i, j] += float(below.exp().sum())
            if i == j:
                within[i] += float((tasks * below).exp().sum())
    return Softmaxes(
        ranges,
        {i: tasks + log(summed) for i, summed in within.items()},
        {pair: 1 + log(summed) for pair, summed in across.items()},
    )


def scores(deltas: Tensor, known: Softmaxes) -> Tensor:
    """Score the entries of one layer (T, ...): the softmax within the task times the sum of those across all tasks."""
    within = torch.empty(deltas.shape, dtype=torch.float64, device=deltas.device)
    across = torch.zeros_like(within)
    for (i, j), product in products(deltas):
        share = normalised(product, known.ranges[i, j])
        if i == j:
            within[i] = (len(deltas) * share - known.within[i]).exp()
        softmax = share.sub_(known.across[i, j]).exp_()
        for task in {i, j}:
            across[task] += softmax
    return within.mul_(across)


def ranges_of(layers: Iterable[Tensor]) -> dict[Pair, Range]:
    """Find the least and the largest product of each pair of tasks over all layers (T, ...)."""
    ranges: dict[Pair, Range] = {}
    for deltas in layers:
        for pair, product in products(deltas):
            low, high = map(float, product.aminmax())
            known = ranges.get(pair, (low, high))
            ranges[pair] = min(low, known[0]), max(high, known[1])
    return ranges


def products(deltas: Tensor) -> Iterator[tuple[Pair, Tensor]]:
    """Multiply the deltas (T, ...) of each pair of tasks, entry by entry."""
    wide = deltas.double().contiguous()
    for i in range(len(wide)):
        for j in range(i, len(wide)):
            yield (i, j), wide[i] * wide[j]


def normalised(product: Tensor, bounds: Range) -> Tensor:
    """Bring products to [0, 1] by their least and largest; to 0 where all are the same."""
    low, high = bounds
    return (product - low).div_(high - low) if high > low else torch.zeros_like(product)


def balanced_mean(deltas: Tensor, weights: Tensor) -> Tensor:
    """Average the tasks' deltas (T, ...) entry by entry with weights (T, ...); 0 where all weights are 0."""
    summed, mass = torch.zeros_like(weights[0]), weights.sum(0)
    for delta, weight in zip(deltas, weights, strict=True):
        summed += delta * weight
    return torch.where(mass > 0, summed / mass, 0.0).to(deltas.dtype)
