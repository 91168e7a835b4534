"""Singular value decompositions: leading vectors, whole spectrum."""

from torch import Tensor, finfo
from torch import linalg

from merganser.layers import Factors


def factorise(matrix: Tensor, rank: int | None = None) -> Factors:
    """Decompose an M x N matrix into its `rank` leading singular vectors (all by default) and its whole spectrum."""
    u, s, vh = linalg.svd(matrix.double(), full_matrices=False)
    kept = slice(0, rank)
    return Factors(u[:, kept].to(matrix.dtype), s.to(matrix.dtype), vh[kept].to(matrix.dtype))


def numerical_rank(s: Tensor, shape: tuple[int, int]) -> int:
    """Count the singular values above max(M, N) * eps * largest."""
    if s.numel() == 0:
        return 0
    return int((s > max(shape) * finfo(s.dtype).eps * s.max()).sum())
