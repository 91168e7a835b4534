"""The parts of isotropic merging (Marczak et al., ICML 2025, arXiv:2502.04959), in float64.

Shape legend: T tasks, M rows, N columns, Q rank of an adapter, K singular vectors.
"""

import torch
from torch import Tensor

from merganser.layers import Factors, LayerDeltas, LayerLowRank
from merganser.linalg.svd import compact, compact_low_rank, numerical_rank, spectral_norm
from merganser.operators.sums import total


def summed(layer: LayerDeltas | LayerLowRank, rank: int | None = None) -> Factors:
    """Decompose the sum of the tasks' matrices on its numerical rank, or less; adapters add up to one of all ranks."""
    if isinstance(layer, LayerLowRank):
        return compact_low_rank(torch.cat(layer.left, 1), torch.cat(layer.right), rank)
    return compact(total(layer.deltas), rank, layer.deltas.dtype)


def specifics(layer: LayerDeltas | LayerLowRank, common: Tensor, count: int) -> list[Factors]:
    """Return each task's `count` leading triples outside the span of common left directions (M, K); fewer at low rank.

    What projecting leaves of a direction within the span is rounding: the rank is judged by the whole matrix's size.
    """
    if count == 0:
        return []
    if isinstance(layer, LayerLowRank):
        return [_of_adapter(*sides, common, count) for sides in zip(layer.left, layer.right, strict=True)]
    return [_of_matrix(delta, common, count) for delta in layer.deltas]


def _of_matrix(delta: Tensor, common: Tensor, count: int) -> Factors:
    exact = delta.double()
    return _known(compact(_outside(exact, common), count, delta.dtype), spectral_norm(exact), delta.dtype)


def _of_adapter(left: Tensor, right: Tensor, common: Tensor, count: int) -> Factors:
    outside = compact_low_rank(_outside(left.double(), common), right, count, left.dtype)
    return _known(outside, compact_low_rank(left, right).s[:1], left.dtype)


def _outside(matrix: Tensor, common: Tensor) -> Tensor:
    return matrix - common @ (common.mT @ matrix)


def _known(factors: Factors, largest: Tensor, dtype: torch.dtype) -> Factors:
    u, s, vh = factors
    rank = numerical_rank(s.to(dtype), (u.shape[0], vh.shape[1]), largest)
    return Factors(u[:, :rank], s[:rank], vh[:rank])
