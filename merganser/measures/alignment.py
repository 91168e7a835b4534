"""How much of each task a merge retains, and how similar the tasks are.

Measures of a matrix's singular values. All take a whole spectrum (R,), descending, and work in float64.

Shape legend: T tasks, M rows, N columns, K directions.
"""

import torch
from torch import Tensor

from merganser.linalg.decompositions import Factors


def effective_rank(s: Tensor) -> float:
    """Return the exponential of the entropy of s / sum(s) (Roy and Vetterli, 2007): R for equal values, 0 for zeros.

    >>> effective_rank(torch.tensor([2.0, 0.0])), round(effective_rank(torch.tensor([1.0, 1.0])), 6)
    (1.0, 2.0)
    """
    s = s.double()
    if not s.any():
        return 0.0
    shares = s / s.sum()
    return float(torch.special.entr(shares).sum().exp())


def energy_share(s: Tensor, k: int) -> float:
    """Return the share of the first k values in the sum of squares; NaN for a zero matrix.

    >>> energy_share(torch.tensor([3.0, 4.0]).flip(0), 1)
    0.64
    """
    squares = s.double().square()
    return float(squares[:k].sum() / squares.sum())


def truncation_error(s: Tensor, k: int) -> float:
    """Return the relative error of a truncation to rank k, in the Frobenius norm; NaN for a zero matrix.

    CART's reconstruction error is its square, times the squared norm of the matrix, summed over the tasks.

    >>> truncation_error(torch.tensor([4.0, 3.0]), 1)
    0.6
    """
    squares = s.double().square()
    return float((squares[k:].sum() / squares.sum()).sqrt())


def approximation_rank(s: Tensor, eps: float) -> int:
    """Return the lowest rank whose truncation has a relative error of at most `eps` (Iso-C, k_M).

    >>> approximation_rank(torch.tensor([4.0, 3.0, 0.01]), 0.05)
    2
    """
    squares = s.double().square()
    lost = squares.flip(0).cumsum(0).flip(0)  # entry k: lost by a truncation to rank k
    return int((lost > eps**2 * squares.sum()).sum())


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
    cosines = (products / norms.outer(norms)).clamp(-1, 1)
    cosines.diagonal()[norms > 0] = 1
    return cosines
