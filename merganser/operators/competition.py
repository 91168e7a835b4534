"""How much each entry counts within its task and among the tasks (PCB-Merging, arXiv:2410.02396).

The scores are softmaxes over whole task vectors, of the products of two tasks' deltas brought to [0, 1]. Two passes
over the layers learn what those need to know of all entries: each product's range, then each softmax's log-sum-exp.
Everything is in float64. Products of i and j and of j and i are one: pairs have i <= j.
Legend: T tasks, C entries of a layer taken at a time.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from math import log
from typing import NamedTuple

import torch
from torch import Tensor

Pair = tuple[int, int]
CHUNK = 1 << 15  # entries at a time: what is made of them stays in a processor's cache


class Range(NamedTuple):
    """The least and the largest of a pair's products."""

    low: float
    high: float

    def normalised(self, products: Tensor) -> Tensor:
        """Bring products to [0, 1], in place; to 0 where all are the same."""
        return products.sub_(self.low).div_(self.high - self.low) if self.high > self.low else products.zero_()


@dataclass(frozen=True)
class Softmaxes:
    """What the softmaxes need to know of the whole vectors."""

    ranges: dict[Pair, Range]
    within: dict[int, float]  # a task's log-sum-exp of T times its own normalised squares
    across: dict[Pair, float]  # the log-sum-exp of a pair's normalised products


def softmaxes(read: Callable[[], Iterable[Tensor]], tasks: int) -> Softmaxes:
    """Read the tasks' deltas (T, ...) of every layer twice."""
    ranges = ranges_of(read())
    within, across = dict.fromkeys(range(tasks), 0.0), dict.fromkeys(ranges, 0.0)
    for (i, j), product in _all_products(read()):
        below = ranges[i, j].normalised(product).sub_(1)  # at most 0: no exponential overflows
        if i == j:
            within[i] += float((tasks * below).exp_().sum())
        across[i, j] += float(below.exp_().sum())
    return Softmaxes(
        ranges,
        {i: tasks + log(summed) for i, summed in within.items()},
        {pair: 1 + log(summed) for pair, summed in across.items()},
    )


def ranges_of(layers: Iterable[Tensor]) -> dict[Pair, Range]:
    """Find the least and the largest product of each pair of tasks over all layers (T, ...)."""
    ranges: dict[Pair, Range] = {}
    for pair, product in _all_products(layers):
        low, high = map(float, product.aminmax())
        known = ranges.get(pair, Range(low, high))
        ranges[pair] = Range(min(low, known.low), max(high, known.high))
    return ranges


def scores(deltas: Tensor, known: Softmaxes) -> Tensor:
    """Score the entries of one layer (T, ...): the softmax within the task times the sum of those across all tasks."""
    return torch.cat([_scores(chunk, known) for chunk in _chunks(deltas)], dim=1).reshape(deltas.shape)


def _scores(chunk: Tensor, known: Softmaxes) -> Tensor:
    within, across = torch.empty_like(chunk), torch.zeros_like(chunk)
    for (i, j), product in _products(chunk):
        share = known.ranges[i, j].normalised(product)
        if i == j:
            within[i] = (len(chunk) * share).sub_(known.within[i]).exp_()
        softmax = share.sub_(known.across[i, j]).exp_()
        for task in {i, j}:
            across[task] += softmax
    return within.mul_(across)


def _all_products(layers: Iterable[Tensor]) -> Iterator[tuple[Pair, Tensor]]:
    for deltas in layers:
        for chunk in _chunks(deltas):
            yield from _products(chunk)
        del deltas  # before the next are read


def _chunks(deltas: Tensor) -> Iterator[Tensor]:
    """Cut a layer's deltas (T, ...) into float64 pieces (T, C)."""
    for chunk in deltas.reshape(len(deltas), -1).split(CHUNK, dim=1):
        yield chunk.double().contiguous()


def _products(chunk: Tensor) -> Iterator[tuple[Pair, Tensor]]:
    """Multiply the deltas (T, C) of each pair of tasks, entry by entry."""
    for i in range(len(chunk)):
        for j in range(i, len(chunk)):
            yield (i, j), chunk[i] * chunk[j]


def balanced_mean(deltas: Tensor, weights: Tensor) -> Tensor:
    """Average the tasks' deltas (T, ...) entry by entry with weights (T, ...); 0 where all weights are 0."""
    summed, mass = torch.zeros_like(weights[0]), weights.sum(0)
    for delta, weight in zip(deltas, weights, strict=True):
        summed += delta * weight
    return torch.where(mass > 0, summed / mass, 0.0).to(deltas.dtype)
