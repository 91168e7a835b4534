"""Batched decompositions of matrices of one shape: one matrix alone does not fill a GPU.

Shape legend: T tasks, M rows, N columns, R = min(M, N), K singular vectors.
"""

import torch
from torch import Tensor, linalg

from merganser.linalg.decompositions import Factors
from merganser.linalg.svd import factorise, is_accurate, numerical_rank

SHARE = 0.5  # of the GPU's free memory that one batch may fill
GRAM_COPIES = 6  # memory per matrix, in Gram matrices: the matrix and its eigenvectors, a copy of both, and workspace


def factorise_all(matrices: Tensor, rank: int | None = None) -> tuple[Factors, ...]:
    """Decompose each of T matrices (T, M, N) as `factorise` does."""
    if not matrices.is_cuda or matrices.dtype == torch.float64:
        return tuple(factorise(matrix, rank) for matrix in matrices)
    pieces = matrices.split(batch_size(matrices))
    return tuple(factors for piece in pieces for factors in factorise_together(piece, rank))


def batch_size(matrices: Tensor) -> int:
    """Return how many of the matrices (T, M, N) can be decomposed together in the GPU's free memory."""
    _, rows, columns = matrices.shape
    free, _ = torch.cuda.mem_get_info(matrices.device)
    kept = torch.cuda.memory_reserved(matrices.device) - torch.cuda.memory_allocated(matrices.device)
    each = 8 * (2 * rows * columns + GRAM_COPIES * min(rows, columns) ** 2)
    return max(1, int(SHARE * (free + kept) / max(each, 1)))


def factorise_together(matrices: Tensor, rank: int | None = None) -> list[Factors]:
    """Decompose T matrices (T, M, N), of float32 or less, from their Gram matrices in float64, in one batched call.

    A matrix for which that is not exact enough is decomposed by itself.

    >>> first, second = factorise_together(torch.tensor([[[2.0, 0.0], [0.0, 1.0]], [[0.0, 3.0], [0.0, 0.0]]]))
    >>> first.s, second.s, second.u.shape
    (tensor([2., 1.]), tensor([3., 0.]), torch.Size([2, 1]))
    """
    _, rows, columns = matrices.shape
    if rows < columns:
        turned = factorise_together(matrices.mT, rank)
        return [Factors(vh.mT.contiguous(), s, u.mT.contiguous()) for u, s, vh in turned]
    exact = matrices.double()
    squares, vectors = linalg.eigh(exact.mT @ exact)
    s, v = squares.flip(1).clamp_(min=0).sqrt_(), vectors.flip(2)[:, :, :rank]
    del squares, vectors
    u = exact @ v
    del exact
    return [_checked(*each, rank) for each in zip(matrices, u, s, v, strict=True)]


def _checked(matrix: Tensor, scaled: Tensor, s: Tensor, v: Tensor, rank: int | None) -> Factors:
    """Return the factors of one matrix (M, N), given U S (M, K), S (R,) and V (N, K), M >= N."""
    known = min(v.shape[1], numerical_rank(s.float(), (len(matrix), len(v))))
    if not is_accurate(s[:known]):
        return factorise(matrix, rank)
    found = (scaled[:, :known] / s[:known], s, v[:, :known].mT)
    return Factors(*(part.to(matrix.dtype).contiguous() for part in found))
