"""Measures: how well a merge does against the individual models, and how much tasks interfere in a layer.

Shape legend: T tasks, M rows, N columns, K singular vectors kept of one task.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from merganser.layers import Factors
from merganser.linalg.polar import polar
from merganser.linalg.svd import numerical_rank


def normalised_accuracy(accuracies: Mapping[str, float], individual: Mapping[str, float]) -> float:
    """Return the mean over tasks of accuracy over the individual model's (TSV, equation 10), as a fraction."""
    return sum(accuracies[task] / individual[task] for task in individual) / len(individual)


def accuracy_drop_rate(accuracies: Mapping[str, float], individual: Mapping[str, float]) -> float:
    """Return ADR: how far the mean accuracy lies below the individual models' mean, as a fraction of theirs (DTS)."""
    reference = sum(individual.values())
    return 1 - sum(accuracies[task] for task in individual) / reference


def interference(left: Sequence[Tensor], values: Sequence[Tensor], right: Sequence[Tensor]) -> float:
    """Return STI, the entrywise L1 norm of (U^T U - I) S (V^T V - I) over the tasks' stacked factors (TSV, equation 7).

    Each task gives U (M, K), S (K,), V^T (K, N); zero for one task, and for orthogonal left or right spaces.
    """
    return _interference(torch.cat([*left], dim=1).double(), torch.cat([*values]), torch.cat([*right]).double())


def interference_after_tsv_m(left: Sequence[Tensor], values: Sequence[Tensor], right: Sequence[Tensor]) -> float:
    """Return STI of the orthogonalised bases that TSV-M puts in place of the tasks' own.

    Zero up to rounding, where the stacked vectors have full column rank; directions that tasks share exactly remain.
    """
    u, vh = torch.cat([*left], dim=1).double(), torch.cat([*right]).double()
    return _interference(polar(u), torch.cat([*values]), polar(vh))


def _interference(u: Tensor, s: Tensor, vh: Tensor) -> float:
    identity = torch.eye(len(s), dtype=u.dtype)
    return float((((u.T @ u - identity) * s.double()) @ (vh @ vh.T - identity)).abs().sum())


def leading(factors: Factors, count: int) -> Factors:
    """Keep at most `count` singular components, and none whose singular value is zero in working precision."""
    shape = (factors.u.shape[0], factors.vh.shape[1])
    kept = min(count, factors.u.shape[1], numerical_rank(factors.s, shape))
    return Factors(factors.u[:, :kept], factors.s[:kept], factors.vh[:kept])
