"""Measures of a matrix's singular values. All take a whole spectrum (R,), descending, and work in float64."""

import torch
from torch import Tensor


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
