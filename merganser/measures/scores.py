"""A merge's scores relative to the individual models'."""

from collections.abc import Mapping
from math import sqrt

LEVEL = 0.05  # corrected p-values below it count as a difference
DIGITS = 9  # of scores: what differs only beyond them is the same


def rank_value(score: float) -> float:
    """Return a mean score rounded for ranking, so that equal means tie whatever their summation order.

    >>> 0.1 + 0.2 + 0.3 == 0.3 + 0.2 + 0.1, rank_value(0.1 + 0.2 + 0.3) == rank_value(0.3 + 0.2 + 0.1)
    (False, True)
    """
    return round(score, DIGITS)


def normalised_score(scores: Mapping[str, float], individual: Mapping[str, float]) -> float:
    """Return the mean over tasks of the score divided by the individual model's (TSV, equation 10), as a fraction.

    >>> normalised_score({"a": 0.4, "b": 0.9}, {"a": 0.8, "b": 0.9})
    0.75
    """
    return sum(scores[task] / individual[task] for task in individual) / len(individual)


def score_drop_rate(scores: Mapping[str, float], individual: Mapping[str, float]) -> float:
    """Return how far the mean score is below the individual models' mean, as a fraction of the latter (DTS's ADR).

    >>> score_drop_rate({"a": 0.25, "b": 0.5}, {"a": 0.5, "b": 0.5})
    0.25
    """
    reference = sum(individual.values())
    return 1 - sum(scores[task] for task in individual) / reference


def error_of_mean(errors: Mapping[str, float | None], individual: Mapping[str, float] | None = None) -> float | None:
    """Return the standard error of a mean over independently sampled tasks; None if a task's is not known.

    `individual`: scores by which each task's is divided first, taken as exact.

    >>> error_of_mean({"a": 0.03, "b": 0.04}), error_of_mean({"a": 0.03, "b": 0.04}, {"a": 0.5, "b": 0.5})
    (0.025, 0.05)
    """
    known = [error / (individual[task] if individual else 1) for task, error in errors.items() if error is not None]
    return sqrt(sum(error**2 for error in known)) / len(errors) if len(known) == len(errors) else None
