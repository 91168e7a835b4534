"""The SVD of the plain programs."""

from torch import Tensor
from torch.linalg import LinAlgError
from torch.linalg import svd as of_torch


def svd(matrix: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the thin SVD; in float64 where LAPACK's does not converge in float32, as happens now and then."""
    try:
        u, s, vh = of_torch(matrix, full_matrices=False)
    except LinAlgError:
        u, s, vh = (each.to(matrix.dtype) for each in of_torch(matrix.double(), full_matrices=False))
    return u, s, vh
