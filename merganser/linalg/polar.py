"""The orthogonal Procrustes problem.

Legend: M rows, N columns, K numerical rank of the matrix P S Q^T.
"""

import torch
from torch import Tensor

from merganser.linalg.lapack import gram, product
from merganser.linalg.svd import compact, is_safe, of_gram


def polar(matrix: Tensor, exact_to: torch.dtype | None = None) -> Tensor:
    """Return the nearest matrix with orthonormal columns (or rows, of a wide one): P Q^T, where the SVD is P S Q^T.

    Only the numerical rank counts: where the matrix has linearly dependent columns the result is a partial isometry,
    and the same whatever the LAPACK driver. Safe for the ill-conditioned stacks that related tasks make.
    `exact_to`: what a float64 matrix was computed from, if from less.
    """
    left, _, right = polar_factors(matrix, exact_to)
    if matrix.shape[0] < matrix.shape[1]:
        return product(right.mT, left.mT, matrix.dtype).mT
    return product(left, right, matrix.dtype)


def polar_factors(matrix: Tensor, exact_to: torch.dtype | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Return left (M, .), the singular values S (K,) and right (., N): P Q^T is left @ right.

    One of the two is the matrix itself, the other Q S^-1 Q^T or P S^-1 P^T on its smaller side: whoever multiplies by
    more than the polar factor need not form it. What is not the matrix is in float64.
    """
    if matrix.shape[0] < matrix.shape[1]:
        left, s, right = polar_factors(matrix.mT, exact_to)
        return right.mT, s, left.mT
    if (exact_to or matrix.dtype) != torch.float64:
        s, vectors, known = of_gram(gram(matrix), len(matrix))
        s, v = s[:known], vectors[:, :known]
        if is_safe(s):
            return matrix, s, (v / s) @ v.mT
    p, s, qh = compact(matrix, exact_to=exact_to)
    return p, s, qh
