"""SFTM: superpose the tasks' singular features so that each keeps its singular value in the merged matrix."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, linalg

from merganser.layers import Factors, LayerDeltas, LayerLowRank
from merganser.linalg.select import top_mask
from merganser.linalg.svd import compact, compact_low_rank, rebuilt
from merganser.operators.sums import scaled_sum
from merganser.operators.vectors import mean
from merganser.parameters import is_norm
from merganser.registry import PositiveFraction, Scaling, method

RIDGE = 1e-6  # of the system's unit diagonal: tasks that share a feature make it singular


def trimmed(deltas: Tensor, density: float) -> Tensor:
    """Keep the largest entries of each task's delta (T, ...), by share of this parameter."""
    return torch.stack([delta * top_mask(delta, density) for delta in deltas])


def merged_vector(layer: LayerDeltas, *, density: float, scaling: float, **_: Any) -> Tensor:
    """Average a norm's deltas as they are; add up the trimmed deltas of any other vector, scaled."""
    if is_norm(layer.name):
        return mean(layer)
    return scaled_sum(trimmed(layer.deltas, density), scaling)


def superposed(features: Sequence[Factors]) -> tuple[Tensor, ...]:
    """Return each task's strengths b with which u_i^T (sum_j b_j u_j v_j^T) v_i = s_i for the triples i of all tasks.

    It is equation 4, b = s * alpha. With unit vectors the system (U^T U) * (V^T V) is positive semidefinite with unit
    diagonal. Only its lower half is ever made, and its Cholesky factor overwrites it: in columns, as LAPACK keeps it.
    """
    sizes = [len(each.s) for each in features]
    system = torch.zeros(sum(sizes), sum(sizes), dtype=torch.float64, device=features[0].s.device).mT
    for rows, one in zip(system.split(sizes), features, strict=True):
        for block, other in zip(rows.split(sizes, 1), features, strict=True):
            block.copy_((one.u.mT @ other.u).mul_(one.vh @ other.vh.mT))
            if other is one:
                break
    system.diagonal().add_(RIDGE)
    lower = linalg.cholesky(system, out=system)
    half = linalg.solve_triangular(lower, torch.cat([each.s for each in features]).unsqueeze(1), upper=False)
    return linalg.solve_triangular(lower.mT, half, upper=True).squeeze(1).split(sizes)


def features(layer: LayerDeltas | LayerLowRank, density: float) -> Iterator[Factors]:
    """Decompose each task's trimmed delta. Trimming looks at entries: only whole adapters stay factors."""
    if isinstance(layer, LayerLowRank) and density == 1:
        yield from (compact_low_rank(*sides) for sides in zip(layer.left, layer.right, strict=True))
    else:
        deltas = layer.dense().deltas if isinstance(layer, LayerLowRank) else layer.deltas
        yield from (compact(delta * top_mask(delta, density)) for delta in deltas)


@method(
    reads="deltas",
    family="spectral",
    formula=r"\lambda \sum_i \beta_i u_i v_i^\top, \quad \big((U^\top U) \odot (V^\top V)\big) \beta = \sigma",
    involvement="VDI",
    efficiency="Medium",
    paper="Qiu et al., 2025, arXiv:2502.10698",
    cost="svd",
    ours=("density", "scaling"),
    low_rank=True,
    vectors=merged_vector,
)
def sftm(layer: LayerDeltas | LayerLowRank, *, density: PositiveFraction = 0.2, scaling: Scaling = 0.7) -> Tensor:
    """Trim each delta to its largest entries, and solve for the weights of all tasks' singular triples together."""
    triples = list(features(layer, density))
    merged = torch.zeros(layer.shape, dtype=torch.float64, device=triples[0].s.device)
    for (u, _, vh), strengths in zip(triples, superposed(triples), strict=True):
        merged += rebuilt(Factors(u, strengths, vh))
    return merged.mul_(scaling).to(layer.dtype)
