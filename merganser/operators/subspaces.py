"""Subspaces of one matrix: isotropic merging (arXiv:2502.04959), in float64, and STAR's truncation (arXiv:2502.10339).

Isotropic merging is of Marczak et al. (ICML 2025); a truncation keeps singular values by what they hold of the whole.

Shape legend: T tasks, M rows, N columns, Q rank of an adapter, K singular vectors.
"""

from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor

from merganser.inputs.layers import LayerDeltas, LayerLowRank
from merganser.linalg.counts import count_of
from merganser.linalg.decompositions import Factors
from merganser.linalg.joint import polar_factors
from merganser.linalg.lapack import gram, product
from merganser.linalg.svd import (
    LEAST_FROM_GRAM,
    compact,
    compact_each,
    compact_low_rank,
    complement,
    groups,
    numerical_rank,
    of_grams,
    spectral_norm,
)
from merganser.operators.sums import total

ROUNDING = 1e-12  # a cumulative sum may stay this share below its own total


def triples_holding(s: Tensor, eta: float) -> int:
    """Count the leading singular values that together hold the share `eta` of the nuclear norm.

    >>> import torch
    >>> triples_holding(torch.tensor([3.0, 2.0, 1.0]), 0.5)
    1
    """
    held = s.double().cumsum(0)
    return min(int((held < eta * (1 - ROUNDING) * held[-1:]).sum()) + 1, len(s))


def own_directions(rank: int, tasks: int, common_fraction: float) -> int:
    """Return how many of R directions each task gets for itself: those outside the common part, divided by T.

    Rounded half to even, as in the authors' code; rounded down if T times the result exceeds R.

    >>> [own_directions(10, tasks, 0.5) for tasks in (2, 3, 8)]  # 2.5, 1.67 and 0.625
    [2, 2, 1]
    >>> own_directions(7, 4, 0.0)  # 1.75: two each would be eight
    1
    """
    left = rank - count_of(common_fraction, rank)
    own = round(left / tasks)
    return own if own * tasks <= rank else left // tasks


def whitened_sum(layer: LayerDeltas | LayerLowRank) -> tuple[Tensor, Tensor, Tensor]:
    """Return U Vh of the sum of the tasks' matrices, up to its numerical rank, as left factor, S (K,), right factor.

    >>> layer = LayerDeltas("proj", "matrix", ("a", "b"), torch.diag(torch.tensor([3.0, -1.0])).repeat(2, 1, 1))
    >>> left, s, right = whitened_sum(layer)
    >>> s, (left @ right).round(decimals=5)
    (tensor([6., 2.], dtype=torch.float64), tensor([[ 1.,  0.],
            [ 0., -1.]], dtype=torch.float64))
    """
    if isinstance(layer, LayerLowRank):
        return summed(layer)
    return polar_factors(total(layer.deltas), layer.dtype)


def summed(layer: LayerDeltas | LayerLowRank, rank: int | None = None) -> Factors:
    """Decompose the sum of the tasks' matrices up to its numerical rank; adapters are concatenated, not multiplied out.

    >>> summed(LayerDeltas("proj", "matrix", ("a", "b"), torch.ones(2, 3, 3))).s.round(decimals=5)
    tensor([6.], dtype=torch.float64)
    """
    if isinstance(layer, LayerLowRank):
        return compact_low_rank(torch.cat(layer.left, 1), torch.cat(layer.right), rank)
    return compact(total(layer.deltas), rank, layer.dtype)


def specifics(layer: LayerDeltas | LayerLowRank, common: Tensor, count: int) -> list[Factors]:
    """Return each task's `count` leading triples outside the span of common left directions (M, K); fewer at low rank.

    Projecting leaves rounding errors of the directions within the span, so the rank's threshold is relative to the
    largest singular value of the whole matrix.

    >>> layer = LayerDeltas("proj", "matrix", ("a",), torch.diag(torch.tensor([3.0, 2.0, 1.0])).unsqueeze(0))
    >>> specifics(layer, torch.eye(3, 1, dtype=torch.float64), 1)[0].s.round(decimals=5)
    tensor([2.], dtype=torch.float64)
    """
    if count == 0:
        return []
    if isinstance(layer, LayerLowRank):
        return [_of_adapter(*sides, common, count) for sides in zip(layer.left, layer.right, strict=True)]
    rows, known = common.shape
    if 2 * (rows - known) < rows:  # few directions remain: work in their coordinates
        rest = complement(common, rows - known)
        inside = (product(delta.mT, rest).mT for delta in layer.deltas)
        return [Factors(rest @ u, s, vh) for u, s, vh in _beyond_rounding(layer.deltas, inside, count)]
    if layer.dtype == torch.float64 or rows < layer.shape[1]:
        outside = (_outside(delta, common) for delta in layer.deltas)
        return list(_beyond_rounding(layer.deltas, outside, count))
    return [factors for group in groups(layer.deltas) for factors in _by_grams(group, common, count)]


def _beyond_rounding(deltas: Sequence[Tensor] | Tensor, parts: Iterable[Tensor], count: int) -> Iterator[Factors]:
    """Decompose a part of each matrix, as far as its values exceed the whole matrix's rounding error."""
    for delta, (u, s, vh) in zip(deltas, compact_each(parts, count, deltas[0].dtype), strict=True):
        known = _count(s, delta)
        yield Factors(u[:, :known], s[:known], vh[:known])


def _by_grams(deltas: list[Tensor], common: Tensor, count: int) -> Iterator[Factors]:
    """Decompose the part of tall matrices outside the span, by Gram matrices where their difference is exact enough."""
    insides = [product(delta.mT, common).mT for delta in deltas]
    grams = [gram(inside, gram(delta), -1.0) for delta, inside in zip(deltas, insides, strict=True)]
    for delta, inside, (s, v, _) in zip(deltas, insides, of_grams(grams, len(common), count), strict=True):
        known = _count(s[:count], delta)
        s, v = s[:known], v[:, :known]
        if known and bool(s[-1] < LEAST_FROM_GRAM * _frobenius_norm(delta)):
            yield from _beyond_rounding([delta], [_outside(delta, common)], count)
        else:
            yield Factors((product(delta, v) - common @ (inside @ v)) / s, s, v.mT)


def _outside(delta: Tensor, common: Tensor) -> Tensor:
    """Project a matrix off the span of orthonormal columns (M, K)."""
    exact = delta.double()
    return exact - common @ (common.mT @ exact)


def _of_adapter(left: Tensor, right: Tensor, common: Tensor, count: int) -> Factors:
    exact = left.double()
    u, s, vh = compact_low_rank(exact - common @ (common.mT @ exact), right, count, left.dtype)
    known = numerical_rank(s.to(left.dtype), (len(left), right.shape[1]), compact_low_rank(left, right).s[:1])
    return Factors(u[:, :known], s[:known], vh[:known])


def _count(s: Tensor, delta: Tensor) -> int:
    """Count the singular values that exceed the whole matrix's rounding error."""
    known = 0
    for norm in (_frobenius_norm, spectral_norm):  # the first is a cheaper upper bound, which often suffices
        known = numerical_rank(s.to(delta.dtype), (delta.shape[0], delta.shape[1]), norm(delta))
        if known == len(s):
            break
    return known


def _frobenius_norm(delta: Tensor) -> Tensor:
    return torch.linalg.vector_norm(delta, dtype=torch.float64)
