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
    coordinates: Callable[[int], Tensor]  # of task t: S V_t^T (K, N), the caller's own
    is_product: bool  # the coordinates of task t are U^T D_t, so one entry is a dot product


def joint(deltas: Tensor, basis: Basis | None = None) -> JointFactors:
    """Decompose T matrices (T, M, N) side by side on their numerical rank. What is returned holds on to them.

    `basis`: that of float32 matrices, where `joint` gave it before; the coordinates are the same to the last digit.

    >>> found = joint(torch.tensor([[[3.0, 0.0]], [[0.0, 4.0]]]))  # [3 0 0 4]
    >>> found.s.float(), found.coordinates(1).abs().float()
    (tensor([5.]), tensor([[0., 4.]]))
    """
    if deltas.dtype == torch.float64:
        return of_factors(_compact(deltas), len(deltas))
    u, s = basis or _by_gram(deltas) or _by_svd(deltas)

    def coordinates(task: int) -> Tensor:
        rows, columns = deltas.shape[1:]
        workspace = s.new_empty(
            rows + len(s), columns
        )  # in one piece, of a size that the allocator gives back when it is freed
        exact, found = workspace[:rows].copy_(deltas[task]), workspace[rows:]
        return torch.mm(u.mT, exact, out=found)

    return JointFactors(u, s, coordinates, is_product=True)


def joint_low_rank(left: Sequence[Tensor], right: Sequence[Tensor]) -> JointFactors:
    """Decompose T products left[t] (M, Q) @ right[t] (Q, N) as `joint` does, without multiplying one of them out."""
    return of_factors(svd.joint_low_rank(left, right), len(left))


def of_factors(factors: Factors, tasks: int) -> JointFactors:
    """Cut factors (M, K), (K,), (K, T * N) into tasks."""
    u, s, vh = factors
    rows = vh.unflatten(1, (tasks, -1))
    return JointFactors(u, s, lambda task: rows[:, task] * s.unsqueeze(1), is_product=False)


def _compact(deltas: Tensor) -> Factors:
    return svd.compact(deltas.transpose(0, 1).flatten(1))


def _by_svd(deltas: Tensor) -> Basis:
    u, s, _ = _compact(deltas)
    return Basis(u.mT.contiguous().mT, s)


def _by_gram(deltas: Tensor) -> Basis | None:
    """Find the basis of T float32 matrices by the sum of their Gram matrices; None where that is of no use."""
    tasks, rows, columns = deltas.shape
    if rows > tasks * columns:
        return None
    gram = torch.zeros(rows, rows, dtype=torch.float64, device=deltas.device)
    for delta in deltas:
        lapack.gram(delta.mT, out=gram)
    squares, vectors = lapack.eigh_(gram)
    del gram
    s = squares.flip(0).clamp_(min=0).sqrt_()
    s = s[: svd.numerical_rank(s.float(), (tasks * columns, rows))]
    return Basis(vectors.mT[rows - len(s) :].flip(0).mT, s) if svd.is_accurate(s) else None
