"""Decompositions of the tasks' matrices side by side, [D_1 .. D_T] = U S [V_1^T .. V_T^T], in float64.

Shape legend: T tasks, M rows, N columns, K numerical rank of the T matrices side by side, Q rank of an adapter.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from merganser.linalg import lapack, svd
from merganser.linalg.decompositions import Basis, Factors


class JointFactors(NamedTuple):
    """T matrices in the left basis they share; their coordinates in it are computed one task at a time."""

    u: Tensor  # (M, K), orthonormal columns
    s: Tensor  # (K,), descending
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
        exact, found = workspace[:rows].copy_(deltas[task]), workspace[rows:]
        return torch.mm(u.mT, exact, out=found)

    return JointFactors(u, s, coordinates, is_product=True)


def joint_low_rank(left: Sequence[Tensor], right: Sequence[Tensor]) -> JointFactors:
    """Decompose T products left[t] (M, Q) @ right[t] (Q, N) as `joint` does, without computing the products."""
    return of_factors(svd.joint_low_rank(left, right), len(left))


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
