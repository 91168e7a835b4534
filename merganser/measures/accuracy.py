"""Measures: how well a merge does against the individual models, and how much tasks interfere in a layer.

Shape legend: T tasks, M rows, N columns, K singular vectors kept of one task.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from merganser.linalg.polar import polar


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
    return _interference(torch.cat([*left], dim=1), torch.cat([*values]), torch.cat([*right]))


def interference_after_tsv_m(left: Sequence[Tensor], values: Sequence[Tensor], right: Sequence[Tensor]) -> float:
    """Return STI of the orthogonalised bases that TSV-M puts in place of the tasks' own.

    Zero up to rounding, where the stacked vectors have full column rank; directions that tasks share exactly remain.
    """
    u, vh = polar(torch.cat([*left], dim=1)), polar(torch.cat([*right]))
    return _interference(u, torch.cat([*values]), vh)


def _interference(u: Tensor, s: Tensor, vh: Tensor) -> float:
    u, s, vh = u.double(), s.double(), vh.double()
    identity = torch.eye(len(s), dtype=s.dtype)
    return float((((u.T @ u - identity) * s) @ (vh @ vh.T - identity)).abs().sum())
