"""Decompositions of the tasks' matrices side by side, [D_1 .. D_T] = U S [V_1^T .. V_T^T] or Q R, in float64.

Beside them the orthogonal Procrustes problem, which finds orthogonal factors without another decomposition.

Shape legend: T tasks, M rows, N columns, K numerical rank of the T matrices side by side, Q rank of an adapter.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from merganser.linalg import lapack, svd
from merganser.linalg.decompositions import Basis, Factors
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

    It uses all eigenvalues of the smaller Gram matrix, and the root that TSV's appendix D.2.1 prints: 1 /
    sqrt(|lambda| + 1e-12). If columns depend on each other up to rounding errors, these are divided by as little as
    1e-6.

    >>> whitened(torch.tensor([[0.0, -3.0], [2.0, 0.0]])).round(decimals=5)
    tensor([[ 0., -1.],
            [ 1.,  0.]], dtype=torch.float64)
    """
    if matrix.shape[0] < matrix.shape[1]:
        return whitened(matrix.mT).mT
    eigenvalues, q = torch.linalg.eigh(gram(matrix), UPLO="U")
    return product(matrix, (q / (eigenvalues.abs() + LEAST).sqrt()) @ q.mT)


COLUMNS = 64  # that are made orthogonal to all before them at a time


class JointFactors(NamedTuple):
    """T matrices in the left basis they share; their coordinates in it are computed one task at a time."""

    u: Tensor  # (M, K), orthonormal columns
    s: Tensor  # (K,), descending; of QR the lengths of the rows of R
    coordinates: Callable[[int], Tensor]  # task t: S V_t^T (K, N), a new tensor
    is_product: bool  # whether the coordinates of task t are U^T D_t, so that one entry is a dot product


def joint(deltas: Tensor, basis: Basis | None = None) -> JointFactors:
    """Decompose T matrices (T, M, N) side by side, up to their numerical rank. The result keeps a reference to them.

    `basis`: the basis that an earlier call found for the same float32 matrices; the coordinates are bit-identical.

    >>> found = joint(torch.tensor([[[3.0, 0.0]], [[0.0, 4.0]]]))  # [3 0 0 4]
    >>> found.s.float(), found.coordinates(1).abs().float()
    (tensor([5.]), tensor([[0., 4.]]))
    """
    if deltas.dtype == torch.float64:
        return of_factors(svd.compact(deltas.transpose(0, 1).flatten(1)), len(deltas))
    u, s = basis or _by_gram(deltas) or _by_svd(deltas)

    def coordinates(task: int) -> Tensor:
        rows, columns = deltas.shape[1:]
        # One allocation, large enough for the allocator to return it to the system when it is freed.
        workspace = s.new_empty(rows + len(s), columns)
        exact, joined = workspace[:rows].copy_(deltas[task]), workspace[rows:]
        return torch.mm(u.mT, exact, out=joined)

    return JointFactors(u, s, coordinates, is_product=True)


def joint_qr(deltas: Tensor) -> JointFactors:
    """Decompose T matrices (T, M, N) side by side into Q and R: [D_1 .. D_T] = Q R. The result keeps a reference.

    Columns are taken in their order, so that of the tasks matters; one that depends on those before it, up to the
    numerical rank's rounding, gives no direction. `s` are the lengths of the rows of R, in no order.

    >>> found = joint_qr(torch.tensor([[[3.0], [4.0]], [[5.0], [0.0]]]))
    >>> found.u.round(decimals=4).tolist(), found.coordinates(1).round(decimals=4).tolist()
    ([[0.6, 0.8], [0.8, -0.6]], [[3.0], [4.0]])
    """
    stacked = deltas.transpose(0, 1).flatten(1).double()
    rounding = max(stacked.shape) * torch.finfo(deltas.dtype).eps * svd.spectral_norm(stacked)
    q, pivots = _in_order(stacked, float(rounding))
    s = torch.linalg.vector_norm(q.mT @ stacked, dim=1)

    def coordinates(task: int) -> Tensor:
        rows, first = q.mT @ deltas[task].double(), task * deltas.shape[2]
        before = torch.arange(first, first + deltas.shape[2], device=rows.device) < pivots.unsqueeze(1)
        return rows.masked_fill_(before, 0)  # R is a staircase: what is below it is rounding

    return JointFactors(q, s, coordinates, is_product=deltas.dtype != torch.float64)


def _in_order(matrix: Tensor, rounding: float) -> tuple[Tensor, Tensor]:
    """Make columns orthonormal in their order: a basis (M, K), and the places (K,) of the columns that gave it."""
    basis, places = matrix[:, :0], list[int]()
    for first, block in zip(range(0, matrix.shape[1], COLUMNS), matrix.split(COLUMNS, 1), strict=True):
        own = matrix[:, :0]
        for place, column in enumerate(_without(basis, block).mT, first):
            rest = _without(own, column.unsqueeze(1))
            if float(rest.norm()) > rounding:
                own, places = torch.cat([own, rest / rest.norm()], 1), [*places, place]
        basis = torch.cat([basis, own], 1)
        if basis.shape[1] == len(matrix):
            break
    return basis, torch.tensor(places, dtype=torch.int64, device=matrix.device)


def _without(basis: Tensor, columns: Tensor) -> Tensor:
    """Subtract what lies in the span of orthonormal columns; the second time for what rounding left of it."""
    for _ in range(2):
        columns = columns - basis @ (basis.mT @ columns)
    return columns


def joint_low_rank(left: Sequence[Tensor], right: Sequence[Tensor]) -> JointFactors:
    """Decompose T products left[t] (M, Q) @ right[t] (Q, N) as `joint` does, without computing the products."""
    return of_factors(svd.concatenated_low_rank(left, right), len(left))


def of_factors(factors: Factors, tasks: int) -> JointFactors:
    """Split factors (M, K), (K,), (K, T * N) by task."""
    u, s, vh = factors
    rows = vh.unflatten(1, (tasks, -1))
    return JointFactors(u, s, lambda task: rows[:, task] * s.unsqueeze(1), is_product=False)


def _by_svd(deltas: Tensor) -> Basis:
    u, s, _ = svd.compact(deltas.transpose(0, 1).flatten(1))
    return Basis(u.mT.contiguous().mT, s)


def _by_gram(deltas: Tensor) -> Basis | None:
    """Find the basis of T float32 matrices from the sum of their Gram matrices.

    Return None if that is larger than the other Gram matrix or not exact enough.
    """
    tasks, rows, columns = deltas.shape
    if rows > tasks * columns:
        return None
    gram = torch.zeros(rows, rows, dtype=torch.float64, device=deltas.device)
    for delta in deltas:
        lapack.gram(delta.mT, out=gram)
    squares, vectors = lapack.eigh_top_(gram, rows)
    del gram
    s = squares.flip(0).clamp_(min=0).sqrt_()
    s = s[: svd.numerical_rank(s.float(), (tasks * columns, rows))]
    return Basis(vectors.mT[rows - len(s) :].flip(0).mT, s) if svd.is_accurate(s) else None
