"""Overlap between the tasks' singular directions in one layer.

Shape legend: T tasks, M rows, N columns, K singular triples kept of one task.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from merganser.linalg.decompositions import Factors
from merganser.linalg.joint import polar


def task_interference(tasks: Sequence[Factors]) -> float:
    """Return STI, the entrywise L1 norm of (U^T U - I) S (V^T V - I) over the tasks' stacked factors (TSV, equation 7).

    Each task gives U (M, K), S (K,), V^T (K, N); zero for one task, and for orthogonal left or right spaces.

    >>> e1, e2 = torch.eye(2).split(1, dim=1)
    >>> one, two = Factors(e1, torch.tensor([2.0]), e1.T), Factors(e1, torch.tensor([3.0]), e1.T)
    >>> task_interference([one, two]), task_interference([one, Factors(e2, torch.tensor([3.0]), e1.T)])
    (5.0, 0.0)
    """
    u, s, vh = _stacked(tasks)
    return _interference(u, s, vh)


def task_interference_after_tsv_m(tasks: Sequence[Factors]) -> float:
    """Return STI of the orthogonalised bases by which TSV-M replaces the tasks' own.

    Zero up to rounding if the stacked vectors have full column rank; directions that tasks share exactly remain.
    """
    u, s, vh = _stacked(tasks)
    return _interference(polar(u), s, polar(vh))


def row_space_interference(tasks: Sequence[Factors]) -> Tensor:
    """Return the Frobenius norms of S_i V_i^T V_j S_j for all pairs of tasks (T, T), each S scaled to unit norm (CART).

    The paper multiplies singular values of equal index, as if V_i^T V_j were diagonal, which ignores overlap between
    directions of different rank; this is the full product. Zero for orthogonal row spaces, NaN for a zero matrix.

    >>> e1 = torch.eye(2)[:, :1]
    >>> one, two = Factors(e1, torch.tensor([2.0]), e1.T), Factors(e1, torch.tensor([3.0]), e1.T)
    >>> row_space_interference([one, two])
    tensor([[1., 1.],
            [1., 1.]], dtype=torch.float64)
    """
    rows = [(f.s.double() / f.s.double().norm()).unsqueeze(1) * f.vh.double() for f in tasks]
    norms = torch.empty(len(rows), len(rows), dtype=torch.float64)
    for i, first in enumerate(rows):
        for j, second in enumerate(rows[: i + 1]):
            empty = not len(first) or not len(second)
            norms[i, j] = norms[j, i] = torch.nan if empty else torch.linalg.matrix_norm(first @ second.mT)
    return norms


def _stacked(tasks: Sequence[Factors]) -> tuple[Tensor, Tensor, Tensor]:
    u, s, vh = zip(*tasks, strict=True)
    return torch.cat(u, dim=1), torch.cat(s), torch.cat(vh)


def _interference(u: Tensor, s: Tensor, vh: Tensor) -> float:
    u, s, vh = u.double(), s.double(), vh.double()
    identity = torch.eye(len(s), dtype=s.dtype)
    return float((((u.T @ u - identity) * s) @ (vh @ vh.T - identity)).abs().sum())
