"""Merges in the basis that the tasks' matrices, set side by side, share.

Shape legend: T tasks, M rows, N columns, K = min(M, T N).
"""

import torch
from torch import Tensor

from benchmarks.plain.arithmetic import disjoint_mean, ties
from benchmarks.plain.factors import svd
from benchmarks.plain.spectral import largest
from benchmarks.plain.states import State, by_layer, is_matrix


def drm_h(vectors: list[State], density: float = 0.2, scaling: float = 1.0) -> State:
    """Renormalise each task's right vectors, prune all together, elect, average (Chaichana et al., 2025)."""

    def merged(deltas: list[Tensor]) -> Tensor:
        u, s, vs = side_by_side(deltas)
        lengths = vs.norm(dim=2, keepdim=True)
        pruned = largest(vs / lengths, density)
        return u @ disjoint_mean(s[:, None] * lengths * pruned)

    return by_layer(vectors, merged, scaling)


def knots(vectors: list[State], density: float = 0.2, scaling: float = 1.0) -> State:
    """Merge the S V_t of all layers by TIES, and multiply by U (Stoica et al., ICLR 2025)."""
    shapes = {name: tensor.shape for name, tensor in vectors[0].items()}
    bases = {}
    for name in shapes:
        if is_matrix(name, vectors[0][name]):
            bases[name], s, vs = side_by_side([vector.pop(name).flatten(1) for vector in vectors])
            for vector, v in zip(vectors, vs, strict=True):
                vector[name] = s[:, None] * v
    merged = ties(vectors, density, scaling)
    merged |= {name: basis @ merged[name] for name, basis in bases.items()}
    return {name: merged[name].reshape(shape) for name, shape in shapes.items()}


def side_by_side(deltas: list[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Decompose T matrices set side by side: U (M, K), S (K), each task's part of Vh (T, K, N)."""
    u, s, vh = svd(torch.cat(deltas, 1))
    return u, s, torch.stack(vh.chunk(len(deltas), 1))
