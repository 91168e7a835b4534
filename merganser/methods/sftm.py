"""SFTM: superpose the tasks' singular features so that each keeps its singular value in the merged matrix."""

from typing import Any

import torch
from torch import Tensor

from merganser.layers import Factors, LayerDeltas
from merganser.linalg.select import top_mask
from merganser.linalg.svd import compact, rebuilt
from merganser.operators.sums import scaled_sum
from merganser.parameters import role_of
from merganser.registry import PositiveFraction, Scaling, method

RIDGE = 1e-6  # of the system's unit diagonal: tasks that share a feature make it singular


def trimmed(deltas: Tensor, density: float) -> Tensor:
    """Keep the largest entries of each task's delta (T, ...), by share of this parameter."""
    return torch.stack([delta * top_mask(delta, density) for delta in deltas])


def merged_vector(layer: LayerDeltas, *, density: float, scaling: float, **_: Any) -> Tensor:
    """Average a norm's deltas as they are; add up the trimmed deltas of any other vector, scaled."""
    if role_of(layer.name) == "norm":
        return scaled_sum(layer.deltas, 1 / len(layer.tasks))
    return scaled_sum(trimmed(layer.deltas, density), scaling)


def superposed(u: Tensor, s: Tensor, vh: Tensor) -> Tensor:
    """Return the strengths b with which u_i^T (sum_j b_j u_j v_j^T) v_i = s_i for all i (equation 4, b = s * alpha).

    With unit vectors the system (U^T U) * (V^T V) is positive semidefinite with unit diagonal.
    Shapes: u (M, K), s (K), vh (K, N).
    """
    system = (u.mT @ u).mul_(vh @ vh.mT)
    system.diagonal().add_(RIDGE)
    return torch.cholesky_solve(s.unsqueeze(1), torch.linalg.cholesky(system)).squeeze(1)


@method(
    reads="deltas",
    family="spectral",
    formula=r"\lambda \sum_i \beta_i u_i v_i^\top, \quad \big((U^\top U) \odot (V^\top V)\big) \beta = \sigma",
    involvement="VDI",
    efficiency="Medium",
    paper="Qiu et al., 2025, arXiv:2502.10698",
    cost="svd",
    vectors=merged_vector,
)
def sftm(layer: LayerDeltas, *, density: PositiveFraction = 0.2, scaling: Scaling = 0.7) -> Tensor:
    """Trim each delta to its largest entries, and solve for the weights of all tasks' singular triples together."""
    deltas = trimmed(layer.deltas, density)
    us, ss, vhs = zip(*(compact(delta) for delta in deltas), strict=True)
    u, s, vh = torch.cat(us, 1), torch.cat(ss), torch.cat(vhs)
    return (scaling * rebuilt(Factors(u, superposed(u, s, vh), vh))).to(deltas.dtype)
