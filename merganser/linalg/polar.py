"""The orthogonal Procrustes problem.

Legend: M rows, N columns, K numerical rank of the matrix P S Q^T.
"""

import torch
from torch import Tensor

from merganser.linalg.lapack import gram, product
from merganser.linalg.svd import is_accurate, numerical_rank, of_gram

LEAST = 1e-12  # added to the eigenvalues whose roots are divided by (TSV, appendix D.2.1)


def polar(matrix: Tensor, exact_to: torch.dtype | None = None) -> Tensor:
    """Return P Q^T of the SVD P S Q^T: the nearest matrix with orthonormal columns (rows, if it is wide).

    Linearly dependent columns give a partial isometry on the numerical rank, the same for every LAPACK driver.
    `exact_to`: the dtype that a float64 matrix was computed from.

    >>> polar(torch.tensor([[0.0, -3.0], [2.0, 0.0]]))
    tensor([[ 0., -1.],
            [ 1.,  0.]])
    """
    left, _, right = polar_factors(matrix, exact_to)
    if matrix.shape[0] < matrix.shape[1]:
        return product(right.mT, left.mT, matrix.dtype).mT
    return product(left, right, matrix.dtype)


def polar_factors(matrix: Tensor, exact_to: torch.dtype | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Return left (M, .), the singular values S (K,) and right (., N) with left @ right = P Q^T.

    One of the two is the matrix itself, the other, in float64, Q S^-1 Q^T or P S^-1 P^T on its smaller side. A caller
    that multiplies the polar factor by another matrix need not form it.

    >>> left, s, right = polar_factors(torch.tensor([[3.0, 0.0], [4.0, 0.0]]))
    >>> s, left @ right.float()
    (tensor([5.], dtype=torch.float64), tensor([[0.6000, 0.0000],
            [0.8000, 0.0000]]))
    """
    rows, columns = matrix.shape
    if rows < columns:
        left, s, right = polar_factors(matrix.mT, exact_to)
        return right.mT, s, left.mT
    exact_to = exact_to or matrix.dtype
    if exact_to != torch.float64:
        s, vectors, rank = of_gram(gram(matrix), rows)
        s, v = s[:rank], vectors[:, :rank]
        if is_accurate(s):
            return matrix, s, (v / s) @ v.mT
    p, s, qh = torch.linalg.svd(matrix.double(), full_matrices=False)
    rank = numerical_rank(s.to(exact_to), (rows, columns))
    return p[:, :rank], s[:rank], qh[:rank]


def whitened(matrix: Tensor) -> Tensor:
    """Return M (M^T M)^-1/2 of a matrix M in float64, which is its polar factor, by eigenvalues.

    Of the smaller Gram matrix, all of them, and by the root that TSV's appendix D.2.1 prints: 1 / sqrt(|lambda| +
    1e-12). Where columns depend on each other but for rounding errors, these are divided by as little as 1e-6.

    >>> whitened(torch.tensor([[0.0, -3.0], [2.0, 0.0]])).round(decimals=5)
    tensor([[ 0., -1.],
            [ 1.,  0.]], dtype=torch.float64)
    """
    if matrix.shape[0] < matrix.shape[1]:
        return whitened(matrix.mT).mT
    eigenvalues, q = torch.linalg.eigh(gram(matrix), UPLO="U")
    return product(matrix, (q / (eigenvalues.abs() + LEAST).sqrt()) @ q.mT)
