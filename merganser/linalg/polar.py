"""The orthogonal Procrustes problem."""

from torch import Tensor

from merganser.linalg.svd import compact


def polar(matrix: Tensor) -> Tensor:
    """Return the nearest matrix with orthonormal columns (or rows, of a wide one): P Q^T, where the SVD is P S Q^T.

    Only the numerical rank counts: where the matrix has linearly dependent columns the result is a partial isometry,
    and the same whatever the LAPACK driver. Safe for the ill-conditioned stacks that related tasks make.
    """
    if matrix.numel() == 0:
        return matrix
    p, _, qh = compact(matrix)
    return (p @ qh).to(matrix.dtype)
