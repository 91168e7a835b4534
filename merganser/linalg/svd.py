"""Singular value decompositions: leading vectors, whole spectrum, accurate to float32's last digits.

The vectors of zero singular values are arbitrary: two LAPACK drivers return different ones. To use singular vectors for
more than multiplying the factors out, stay within the numerical rank: `compact`, `leading`, `joint.joint`. Matrices of
one shape are decomposed in a batch, since one matrix alone does not fill a GPU.

Shape legend: T tasks, M rows, N columns, R = min(M, N), K singular vectors, Q rank of an adapter.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from math import ceil

import torch
from torch import Tensor, linalg

from merganser.errors import InputError
from merganser.linalg import lapack
from merganser.linalg.decompositions import Factors

LEAST_FROM_GRAM = 1e-4  # of the largest singular value: a float64 Gram matrix gives its vectors exact to eps / 1e-8
ROUNDING = 1e-6  # relative: weighting the values may move one at the numerical rank's limit across it


def factorise(matrix: Tensor, rank: int | None = None) -> Factors:
    """Decompose an M x N matrix into leading singular vectors on its numerical rank K and its whole spectrum.

    U (M, K), S (R), Vh (K, N), computed in float64 and returned in the matrix's dtype. `rank` caps K.

    >>> u, s, vh = factorise(torch.tensor([[0.0, 3.0], [0.0, 4.0]]))  # of rank 1
    >>> s, (u * s[:1] @ vh).round(decimals=4)
    (tensor([5., 0.]), tensor([[0., 3.],
            [0., 4.]]))
    """
    return factorise_all(matrix.unsqueeze(0), rank)[0]


def factorise_all(matrices: Tensor, rank: int | None = None) -> tuple[Factors, ...]:
    """Decompose each of T matrices (T, M, N) as `factorise` does: on a GPU as many together as fit."""
    dtype = matrices.dtype
    decomposed = _each_decomposed(matrices, rank, dtype, dtype)
    return tuple(Factors(*(part.to(dtype).contiguous() for part in parts)) for parts in decomposed)


def compact(matrix: Tensor, rank: int | None = None, exact_to: torch.dtype | None = None) -> Factors:
    """Decompose an M x N matrix on its numerical rank K, or less: U (M, K), S (K), Vh (K, N), in float64.

    `rank` caps K. `exact_to`: the dtype that a float64 matrix was computed from; the vectors need no more precision.
    """
    return next(compact_each([matrix], rank, exact_to))


def compact_each(
    matrices: Iterable[Tensor], rank: int | None = None, exact_to: torch.dtype | None = None
) -> Iterator[Factors]:
    """Decompose matrices of one shape as `compact` does: on a GPU as many together as fit, on the CPU one by one."""
    return map(_compacted, _each_decomposed(matrices, rank, exact_to, torch.float64))


def _compacted(factors: Factors) -> Factors:
    return Factors(factors.u, factors.s[: len(factors.vh)], factors.vh)


def truncations(
    matrices: Iterable[Tensor], rank: int, exact_to: torch.dtype | None = None
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield left (M, K) and right (K, N) in float64 whose product is the best approximation of a matrix of this rank.

    Projects on the leading singular vectors of one side. A Gram matrix may not separate two small singular values; here
    that does no harm: the error is about eps * largest**2 / smallest kept, however close they are. The matrices have
    one shape; on a GPU as many are decomposed together as fit, on the CPU one by one.

    >>> ((left, right),) = truncations([torch.tensor([[3.0, 0.0], [0.0, 1.0]])], 1)
    >>> (left @ right).float()
    tensor([[3., 0.],
            [0., 0.]])
    """
    for group in groups(matrices, exact_to):
        if (exact_to or group[0].dtype) == torch.float64:
            yield from ((u * s, vh) for u, s, vh in compact_each(group, rank))
            continue
        decomposed = lapack.each_eigh_top_([lapack.gram(_tall(matrix)) for matrix in group], rank)
        while group:
            yield _projected(group.pop(0), decomposed.pop(0)[1])


def _projected(matrix: Tensor, vectors: Tensor) -> tuple[Tensor, Tensor]:
    """Return the factors of a matrix projected on vectors of its smaller side, in columns."""
    left, right = lapack.product(_tall(matrix), vectors), vectors.mT
    return (right.mT, left.mT) if _is_wide(matrix) else (left, right)


def factorise_low_rank(left: Tensor, right: Tensor) -> Factors:
    """Decompose the product of left (M, Q) and right (Q, N) on its numerical rank K <= Q: U (M, K), S (K), Vh (K, N).

    Works in float64 on a Q x Q core, never on the product, and returns the adapter's dtype.
    """
    return Factors(*(part.to(left.dtype).contiguous() for part in compact_low_rank(left, right)))


def compact_low_rank(
    left: Tensor, right: Tensor, rank: int | None = None, exact_to: torch.dtype | None = None
) -> Factors:
    """Decompose left (M, Q) @ right (Q, N) up to its numerical rank, in float64, without computing the product."""
    u, s, vh = concatenated_low_rank([left], [right], exact_to)
    return Factors(u[:, :rank], s[:rank], vh[:rank])


def concatenated_low_rank(
    left: Sequence[Tensor], right: Sequence[Tensor], exact_to: torch.dtype | None = None
) -> Factors:
    """Decompose T products left[t] (M, Q) @ right[t] (Q, N) side by side, without computing the products.

    Q may differ from task to task. The SVD runs on a square core of the size of the sum of the ranks.
    """
    basis, columns = linalg.qr(torch.cat([side.double() for side in left], 1))
    bases, rows = zip(*(linalg.qr(side.double().mT) for side in right), strict=True)
    per_task = zip(columns.split([side.shape[1] for side in left], 1), rows, strict=True)
    u, s, vh = linalg.svd(torch.cat([mixed @ row.mT for mixed, row in per_task], 1), full_matrices=False)
    joined = (basis.shape[0], sum(side.shape[1] for side in right))
    rank = numerical_rank(s.to(exact_to or left[0].dtype), joined)
    blocks = zip(vh[:rank].split([each.shape[1] for each in bases], 1), bases, strict=True)
    return Factors(basis @ u[:, :rank], s[:rank], torch.cat([block @ each.mT for block, each in blocks], 1))


def numerical_rank(s: Tensor, shape: tuple[int, int], largest: Tensor | None = None) -> int:
    """Count the singular values of an M x N matrix above max(M, N) * eps * largest, eps of their dtype.

    `largest`: by default the matrix's own; for a part of a matrix, the largest singular value of the whole.

    >>> numerical_rank(torch.tensor([1.0, 1e-3, 1e-7]), (100, 3))  # 1.2e-5 and less is rounding
    2
    """
    return int((s > max(shape) * torch.finfo(s.dtype).eps * (s[:1] if largest is None else largest)).sum())


def spectral_norm(matrix: Tensor) -> Tensor:
    """Return the largest singular value, from the smaller Gram matrix in float64.

    >>> spectral_norm(torch.tensor([[3.0, 0.0], [0.0, 4.0]]))
    tensor(4., dtype=torch.float64)
    """
    return lapack.eigenvalues_(lapack.gram(_tall(matrix)))[-1].clamp(min=0).sqrt()


def leading(factors: Factors, count: int) -> Factors:
    """Return the `count` leading singular triples, fewer where the numerical rank is lower.

    Raises InputError when the factors hold fewer vectors than that.
    """
    u, s, vh = factors
    shape = (u.shape[0], vh.shape[1])
    needed = min(count, numerical_rank(s, shape, s[:1] * (1 + ROUNDING)))
    if needed > u.shape[1]:
        share = ceil(1000 * needed / len(s)) / 1000
        raise InputError(
            f"decompose.rank_fraction is too small: of a {shape[0]} x {shape[1]} matrix {needed} singular vectors are "
            f"needed and {u.shape[1]} are stored; set it to {share:g} or more"
        )
    kept = min(count, numerical_rank(s, shape), u.shape[1])
    return Factors(u[:, :kept], s[:kept], vh[:kept])


def oriented(factors: Factors) -> Factors:
    """Flip the sign of each triple so that the largest entry of its left vector is positive.

    Each LAPACK driver chooses its own signs: orient the triples before using the signs of entries.
    """
    u, s, vh = factors
    signs = orientation(u)
    return Factors(u * signs, s, signs.unsqueeze(1) * vh)


def orientation(u: Tensor) -> Tensor:
    """Return the sign of the largest entry of each left vector (M, K): K numbers.

    >>> orientation(torch.tensor([[0.6, 0.6], [-0.8, 0.8]]))
    tensor([-1.,  1.])
    """
    return u.gather(0, u.abs().argmax(0, keepdim=True)).sign().squeeze(0)


def rebuilt(factors: Factors) -> Tensor:
    """Multiply factors (M, K), (K or more), (K, N) out to the M x N matrix they stand for.

    >>> rebuilt(Factors(torch.tensor([[1.0], [0.0]]), torch.tensor([2.0, 0.0]), torch.tensor([[0.0, 1.0]])))
    tensor([[0., 2.],
            [0., 0.]])
    """
    u, s, vh = factors
    return (u * s[: u.shape[1]]) @ vh


def complement(basis: Tensor, count: int) -> Tensor:
    """Return `count` orthonormal columns that are orthogonal to those of a basis (M, K), count <= M - K, in float64.

    >>> complement(torch.tensor([[1.0], [0.0]]), 1).abs().float()
    tensor([[0.],
            [1.]])
    """
    rows, known = basis.shape
    units = torch.zeros(rows, count, dtype=torch.float64, device=basis.device)
    units[known : known + count].fill_diagonal_(1)
    return torch.ormqr(*torch.geqrf(basis.double()), units)


def of_gram(gram: Tensor, longer: int, count: int | None = None) -> tuple[Tensor, Tensor, int]:
    """Return a float32 matrix's singular values, `count` leading vectors (default: all) in columns, and numerical rank.

    `gram` is its smaller Gram matrix, which is overwritten, `longer` the length of its longer side.
    """
    return of_grams([gram], longer, count)[0]


def of_grams(grams: list[Tensor], longer: int, count: int | None = None) -> list[tuple[Tensor, Tensor, int]]:
    """Return what `of_gram` does for each Gram matrix; a GPU decomposes them together."""
    size = len(grams[0])
    decomposed = lapack.each_eigh_top_(grams, size if count is None else count)
    spectra = [(squares.flip(0).clamp_(min=0).sqrt_(), vectors.flip(1)) for squares, vectors in decomposed]
    return [(s, vectors, numerical_rank(s.float(), (longer, size))) for s, vectors in spectra]


def is_accurate(s: Tensor) -> bool:
    """Tell whether a Gram matrix, which squares the singular values, gives exact enough vectors for all of these."""
    return len(s) == 0 or bool(s[-1] >= LEAST_FROM_GRAM * s[0])


def _each_decomposed(
    matrices: Iterable[Tensor], rank: int | None, exact_to: torch.dtype | None, dtype: torch.dtype
) -> Iterator[Factors]:
    """Yield each matrix's whole spectrum, and its vectors up to the numerical rank, or `rank`: in `dtype`, or float64.

    `exact_to`: by default the matrices' dtype.
    """
    for group in groups(matrices, exact_to):
        exact = exact_to or group[0].dtype
        if exact == torch.float64:
            yield from (_by_svd(matrix, rank, exact) for matrix in group)
            continue
        spectra = of_grams([lapack.gram(_tall(matrix)) for matrix in group], max(group[0].shape), rank)
        while group:
            yield _of_spectrum(group.pop(0), *spectra.pop(0), rank, exact, dtype)


def _of_spectrum(
    matrix: Tensor, s: Tensor, vectors: Tensor, known: int, rank: int | None, exact_to: torch.dtype, dtype: torch.dtype
) -> Factors:
    """Return the factors of a matrix of which `of_gram` is known, where that is exact enough."""
    v = vectors[:, :known]
    counted = s[: v.shape[1]]
    if not is_accurate(counted):
        return _by_svd(matrix, rank, exact_to)
    left, right = lapack.product(_tall(matrix), v / counted, dtype), v.mT.to(dtype).contiguous()
    u, vh = (right.mT.contiguous(), left.mT.contiguous()) if _is_wide(matrix) else (left, right)
    return Factors(u, s.to(dtype), vh)


def _by_svd(matrix: Tensor, rank: int | None, exact_to: torch.dtype) -> Factors:
    """Decompose a matrix by LAPACK's SVD in float64."""
    if _is_wide(matrix):
        u, s, vh = _by_svd(matrix.mT, rank, exact_to)
        return Factors(vh.mT.contiguous(), s, u.mT.contiguous())
    u, s, vh = linalg.svd(matrix.double(), full_matrices=False)
    known = numerical_rank(s[:rank].to(exact_to), (matrix.shape[0], matrix.shape[1]))
    return Factors(u[:, :known], s, vh[:known])


def _is_wide(matrix: Tensor) -> bool:
    return matrix.shape[0] < matrix.shape[1]


def _tall(matrix: Tensor) -> Tensor:
    return matrix.mT if _is_wide(matrix) else matrix


SHARE = 0.5  # of the GPU's free memory that what is decomposed together may fill
GRAM_COPIES = 6  # memory per matrix, in Gram matrices: the matrix and its eigenvectors, a copy of both, and workspace


def groups(matrices: Iterable[Tensor], exact_to: torch.dtype | None = None) -> Iterator[list[Tensor]]:
    """Group matrices of one shape by how many are decomposed together: as many as fit a GPU's free memory, or one.

    Who is done with a matrix takes it out of its group, so that its memory is free before the next is made. What is
    `exact_to` float64 (by default the matrices' dtype) has no Gram matrices, and is decomposed alone.
    """
    rest = iter(matrices)
    while group := list(islice(rest, 1)):
        first = group[0]
        if first.is_cuda and (exact_to or first.dtype) != torch.float64:
            bytes_each = 8 * (2 * first.numel() + GRAM_COPIES * min(first.shape) ** 2)
            group.extend(islice(rest, max(0, int(SHARE * free_memory(first.device) / max(bytes_each, 1)) - 1)))
        del first
        yield group


def free_memory(device: torch.device) -> int:
    """Return how many bytes of a GPU's memory torch can allocate."""
    free, _ = torch.cuda.mem_get_info(device)
    return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
