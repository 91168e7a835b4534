"""The orthogonal Procrustes problem.

Legend: M rows, N columns, K rank of the matrix P S Q^T.
"""

from math import sqrt

import torch
from torch import Tensor

from merganser.linalg.lapack import gram, product
from merganser.linalg.svd import of_gram

SAFE = 2e-5  # of the largest singular value: by the Gram matrix, P Q^T is exact to about eps / SAFE**2 = 6e-7


def polar(matrix: Tensor, exact_to: torch.dtype | None = None) -> Tensor:
    """Return the nearest matrix with orthonormal columns (or rows, of a wide one): P Q^T, where the SVD is P S Q^T.

    For stacks of unit vectors. Linearly dependent ones give a partial isometry, the same whatever the LAPACK driver.
    Safe for the ill-conditioned stacks that related tasks make.
    `exact_to`: what a float64 matrix was computed from, if from less.
    """
    left, _, right = polar_factors(matrix, exact_to)
    if matrix.shape[0] < matrix.shape[1]:
        return product(right.mT, left.mT, matrix.dtype).mT
    return product(left, right, matrix.dtype)


def polar_factors(
    matrix: Tensor, exact_to: torch.dtype | None = None, least: float | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return left (M, .), the singular values S (K,) and right (., N): P Q^T is left @ right.

    One of the two is the matrix itself, the other Q S^-1 Q^T or P S^-1 P^T on its smaller side: whoever multiplies by
    more than the polar factor need not form it. What is not the matrix is in float64.
    `least`: up to this share of the largest a singular value is rounding. By default sqrt(max(M, N)) eps, many times
    what rounding the entries of unit vectors leaves. The usual max(M, N) eps would drop a direction of every seventh
    square stack of 768 independent vectors, which has one as small.
    """
    if matrix.shape[0] < matrix.shape[1]:
        left, s, right = polar_factors(matrix.mT, exact_to, least)
        return right.mT, s, left.mT
    exact_to = exact_to or matrix.dtype
    least = sqrt(max(matrix.shape)) * torch.finfo(exact_to).eps if least is None else least
    if exact_to != torch.float64:
        s, vectors, _ = of_gram(gram(matrix), len(matrix))
        s = s[s > least * s[:1]]
        if len(s) == 0 or bool(s[-1] >= SAFE * s[0]):
            v = vectors[:, : len(s)]
            return matrix, s, (v / s) @ v.mT
    p, s, qh = torch.linalg.svd(matrix.double(), full_matrices=False)
    s = s[s > least * s[:1]]
    return p[:, : len(s)], s, qh[: len(s)]
