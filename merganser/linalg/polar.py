"""The orthogonal Procrustes problem."""

import torch
from torch import Tensor

from merganser.linalg.svd import compact


def polar(matrix: Tensor, exact_to: torch.dtype | None = None) -> Tensor:
    """Return the nearest matrix with orthonormal columns (or rows, of a wide one): P Q^T, where the SVD is P S Q^T.

    Only the numerical rank counts: where the matrix has linearly dependent columns the result is a partial isometry,
    and the same whatever the LAPACK driver. Safe for the ill-conditioned stacks that related tasks make.
    `exact_to`: what a float64 matrix was computed from, if from less.
    """
    if matrix.numel() == 0:
        return matrix
    p, _, qh = compact(matrix, exact_to=exact_to)
    return (p @ qh).to(matrix.dtype)
