"""SFTM: superpose the tasks' singular features so that each keeps its singular value in the merged matrix."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from merganser.checkpoints.kinds import is_norm
from merganser.inputs.layers import LayerDeltas, LayerLowRank
from merganser.linalg.blocks import joined
from merganser.linalg.decompositions import Factors
from merganser.linalg.select import cut_at, each_trimmed
from merganser.linalg.svd import compact, compact_low_rank
from merganser.merging.method import Densities, Scaling, method
from merganser.operators.coefficients import PerTask, each_of
from merganser.operators.sums import scaled_sum
from merganser.operators.superposition import strengths


def trimmed(deltas: Tensor, densities: Sequence[float]) -> Iterator[Tensor]:
    """Keep the largest entries of each task's delta (T, ...), by its share of this parameter."""
    cut = cut_at(lambda: [deltas], densities)
    for delta, level in zip(deltas, cut, strict=True):
        pieces = (block.squeeze(0) for block in each_trimmed(delta.unsqueeze(0), (level,)))
        yield joined(pieces, delta.shape, delta.dtype, delta.device)


def merged_vector(layer: LayerDeltas, *, density: PerTask, scaling: float, **_: Any) -> Tensor:
    """Trim the deltas; average those of a normalisation, add up those of any other vector, scaled (Algorithm 2)."""
    factor = 1 / len(layer.tasks) if is_norm(layer.name) else scaling
    return scaled_sum(torch.stack(list(trimmed(layer.deltas, each_of(density, layer.tasks)))), factor)


def features(layer: LayerDeltas | LayerLowRank, density: PerTask, dtype: torch.dtype) -> list[Factors]:
    """Decompose each task's trimmed delta, in float64, and keep that in a dtype."""
    rows, columns = layer.shape
    device = (layer.left[0] if isinstance(layer, LayerLowRank) else layer.deltas).device
    space = torch.empty(len(layer.tasks), min(rows, columns), rows + columns, dtype=dtype, device=device)
    found = []
    for own, (u, s, vh) in zip(space, triples_of(layer, density), strict=True):
        left, right = own[: len(s)].split([rows, columns], 1)
        found.append(Factors(left.copy_(u.mT).mT, s, right.copy_(vh)))
        del u, vh  # before the next are computed
    return found


def triples_of(layer: LayerDeltas | LayerLowRank, density: PerTask) -> Iterator[Factors]:
    """Decompose each task's trimmed delta. Trimming looks at entries: only whole adapters stay factors."""
    densities = each_of(density, layer.tasks)
    if isinstance(layer, LayerLowRank) and all(each == 1 for each in densities):
        yield from (compact_low_rank(*sides) for sides in zip(layer.left, layer.right, strict=True))
    else:
        deltas = layer.dense().deltas if isinstance(layer, LayerLowRank) else layer.deltas
        yield from map(compact, trimmed(deltas, densities))


def superposed(triples: list[Factors]) -> Tensor | None:
    """Add up the tasks' triples (M, N), each so strong that it keeps its singular value; None if that needs float64."""
    found = strengths(triples)
    if found is None:
        return None
    u, vh = triples[0].u, triples[0].vh
    merged = u.new_zeros(len(u), vh.shape[1])
    for each, own in zip(triples, found, strict=True):
        merged.addmm_(each.u * own.to(u.dtype), each.vh)
    return merged


@method(
    family="spectral",
    formula=r"\lambda \sum_i \beta_i u_i v_i^\top, \quad \big((U^\top U) \odot (V^\top V)\big) \beta = \sigma",
    involvement="VDI",
    efficiency="Medium",
    paper="Qiu et al., 2025, arXiv:2502.10698",
    law="every kept feature keeps its singular value; the same task twice gives it once",
    cost="svd",
    ours=("density", "scaling"),
    low_rank=True,
    vectors=merged_vector,
)
def sftm(layer: LayerDeltas | LayerLowRank, *, density: Densities = 0.2, scaling: Scaling = 0.7) -> Tensor:
    """Trim each delta to its largest entries, and solve for the weights of all tasks' singular triples together."""
    tries = (superposed(features(layer, density, dtype)) for dtype in (layer.dtype, torch.float64))
    return next(merged for merged in tries if merged is not None).mul_(scaling).to(layer.dtype)
