"""Merges by each matrix's singular value decomposition.

Shape legend: T tasks, M rows, N columns, R = min(M, N).
"""

import torch
from torch import Tensor
from torch.linalg import solve

from benchmarks.plain.arithmetic import sum_of
from benchmarks.plain.factors import svd
from benchmarks.plain.states import State, by_layer, is_matrix
from merganser.checkpoints.kinds import is_norm

RIDGE = 1e-6  # on SFTM's unit diagonal: tasks that share a feature make the system singular


def tsv_m(vectors: list[State], scaling: float = 1.0) -> State:
    """Keep a T-th of each task's singular triples and make them orthogonal to the others' (Gargiulo et al., 2025)."""

    def merged(deltas: list[Tensor]) -> Tensor:
        kept = min(deltas[0].shape) // len(deltas)
        us, ss, vhs = zip(*(svd(delta) for delta in deltas), strict=True)
        u = torch.cat([u[:, :kept] for u in us], 1)
        s = torch.cat([s[:kept] for s in ss])
        vh = torch.cat([vh[:kept] for vh in vhs])
        return polar(u) * s @ polar(vh)

    return by_layer(vectors, merged, scaling)


def iso_c(vectors: list[State], scaling: float = 1.0) -> State:
    """Give the sum's singular values their mean (Marczak et al., ICML 2025)."""

    def merged(deltas: list[Tensor]) -> Tensor:
        u, s, vh = svd(sum_of(deltas))
        return s.mean() * (u @ vh)

    return by_layer(vectors, merged, scaling)


def iso_cts(vectors: list[State], common_fraction: float = 0.8, scaling: float = 1.0) -> State:
    """Join the sum's leading directions and each task's own beyond them; equal values (Marczak et al., ICML 2025)."""

    def merged(deltas: list[Tensor]) -> Tensor:
        rank, tasks = min(deltas[0].shape), len(deltas)
        own = (rank - int(common_fraction * rank)) // tasks
        common = rank - tasks * own
        u, s, vh = svd(sum_of(deltas))
        us, ss, vhs = [u[:, :common]], [s[:common]], [vh[:common]]
        for delta in deltas:
            u, s, vh = svd(delta - us[0] @ (us[0].mT @ delta))
            us.append(u[:, :own])
            ss.append(s[:own])
            vhs.append(vh[:own])
        return torch.cat(ss).mean() * (polar(torch.cat(us, 1)) @ polar(torch.cat(vhs)))

    return by_layer(vectors, merged, scaling)


def sftm(vectors: list[State], density: float = 0.2, scaling: float = 0.7) -> State:
    """Superpose the tasks' singular triples so that each keeps its value (Qiu et al., 2025, equation 4)."""
    merged = {}
    for name, first in vectors[0].items():
        deltas = [largest(vector[name], density) for vector in vectors]
        if is_norm(name):
            merged[name] = torch.stack(deltas).mean(0)
            continue
        if not is_matrix(name, first):
            merged[name] = scaling * sum_of(deltas)
            continue
        us, ss, vhs = zip(*(svd(delta.flatten(1)) for delta in deltas), strict=True)
        u, s, vh = torch.cat(us, 1), torch.cat(ss), torch.cat(vhs)
        system = (u.mT @ u) * (vh @ vh.mT) + RIDGE * torch.eye(len(s))
        merged[name] = scaling * (u * solve(system, s) @ vh).reshape(first.shape)
    return merged


def polar(matrix: Tensor) -> Tensor:
    """Return the nearest matrix with orthonormal columns or rows."""
    u, _, vh = svd(matrix)
    return u @ vh


def largest(delta: Tensor, density: float) -> Tensor:
    """Keep the largest entries, and those equal to the least of them."""
    magnitudes, count = delta.abs().flatten(), int(density * delta.numel())
    return torch.where(delta.abs() >= magnitudes.kthvalue(len(magnitudes) - count + 1).values, delta, 0)
