"""How much of each task a merge retains, and how similar the tasks are.

Shape legend: T tasks, M rows, N columns, K directions.
"""

import torch
from torch import Tensor

from merganser.linalg.decompositions import Factors
from merganser.measures.spectra import approximation_rank

EPS = 0.05  # share of the merged matrix's norm outside its leading directions (Iso-C)


def leading_directions(merged: Factors, eps: float = EPS) -> Tensor:
    """Return the left singular vectors (M, K) that hold all but `eps` of a merged delta's norm; K = 0 if it is zero."""
    return merged.u[:, : approximation_rank(merged.s, eps)]


def subspace_alignment(delta: Tensor, directions: Tensor) -> float:
    """Return SAR, the share of a task's delta (M, N) within a merge's directions (M, K), as a ratio of norms.

    Between 0 and 1, and NaN for a zero delta. Marczak et al., ICML 2025, arXiv:2502.04959, equation 3.

    >>> subspace_alignment(torch.tensor([[3.0], [4.0]]), torch.tensor([[0.0], [1.0]]))
    0.8
    """
    delta = delta.double()
    inside = torch.linalg.matrix_norm(directions.double().mT @ delta)
    return float((inside / torch.linalg.matrix_norm(delta)).clamp(max=1))


def delta_inner_products(deltas: Tensor) -> Tensor:
    """Return the inner products of all pairs of T deltas (T, ...), in float64: (T, T). They add up over layers."""
    flat = deltas.reshape(len(deltas), -1).double()
    return flat @ flat.T


def delta_cosines(products: Tensor) -> Tensor:
    """Turn inner products (T, T) into cosines: exactly 1 of a delta with itself, NaN with a zero delta.

    >>> delta_cosines(delta_inner_products(torch.tensor([[1.0, 0.0], [3.0, 4.0]])))
    tensor([[1.0000, 0.6000],
            [0.6000, 1.0000]], dtype=torch.float64)
    """
    norms = products.diagonal().sqrt()
    found = (products / norms.outer(norms)).clamp(-1, 1)
    found.diagonal()[norms > 0] = 1
    return found
