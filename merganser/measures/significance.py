"""Which of E models differ by more than chance on the same examples: paired tests of all pairs.

Of 1 and 0 (right or wrong) McNemar's exact test; of metrics that are no means the paired bootstrap's standard error and
the normal distribution; of other scores the same with the sample's own error, which a bootstrap of means would tend to.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.stats import binom, norm

from merganser.evaluation.examples import Results
from merganser.evaluation.metrics import METRICS, Floats
from merganser.evaluation.scoring import bootstrap

LEVEL = 0.05  # corrected p-values below it count as a difference


class Pairs(NamedTuple):
    """All pairs of E models on one task, or on several: each of (E, E), the first model's index first."""

    difference: Floats  # of the first model's value from the second's
    variance: Floats  # of that difference
    p: Floats  # two-sided, of no difference
    step: float  # the least difference there can be, 0 where values are no counts


def compare_models(metric: str, models: Sequence[Results]) -> Pairs:
    """Compare E models' results on one task's examples."""
    scores = [model.score for model in models if model.score is not None]
    if not scores:
        predictions = [model.prediction for model in models if model.prediction is not None]
        label = models[0].label
        assert label is not None, "results without scores and without labels"
        values = np.array([METRICS[metric].of(one, label, None) for one in predictions])
        return _by_error(values, np.cov(bootstrap(metric, predictions, label)))
    stacked = np.stack(scores)
    if np.isin(stacked, (0, 1)).all():
        return _by_counts(stacked)
    count = stacked.shape[1]
    return _by_error(stacked.mean(1), np.cov(stacked) / count if count > 1 else np.zeros((len(stacked),) * 2))


def _by_counts(scores: Floats) -> Pairs:
    """Compare models that are right (1) or wrong (0) on N examples (E, N); the variance is that of no difference."""
    wins = scores @ (1 - scores).T
    losses, count = wins.T, scores.shape[1]
    return Pairs((wins - losses) / count, (wins + losses) / count**2, mcnemar(wins, losses), 1 / count)


def _by_error(values: Floats, covariance: Floats) -> Pairs:
    covariance = np.atleast_2d(covariance)
    spread = np.diag(covariance)
    variance = np.maximum(spread[:, None] + spread - 2 * covariance, 0)
    difference = values[:, None] - values
    return Pairs(difference, variance, _two_sided(np.abs(difference), variance), 0.0)


def mean_of_tasks(tasks: Sequence[Pairs]) -> Pairs:
    """Compare the means over tasks, whose examples are drawn apart; of counts with McNemar's continuity correction."""
    difference = np.mean([task.difference for task in tasks], axis=0)
    variance = np.sum([task.variance for task in tasks], axis=0) / len(tasks) ** 2
    steps = [task.step for task in tasks]
    step = max(steps) / len(tasks) if all(steps) else 0.0
    return Pairs(difference, variance, _two_sided(np.abs(difference) - step, variance), step)


def _two_sided(distance: Floats, variance: Floats) -> Floats:
    """Return the normal distribution's p-value; 1 where there is no spread to judge by."""
    errors = np.sqrt(variance)
    z = np.divide(distance, errors, out=np.zeros_like(errors), where=errors > 0)
    return np.minimum(1, 2 * norm.sf(np.maximum(z, 0)))


def mcnemar(wins: Floats, losses: Floats) -> Floats:
    """Return McNemar's exact two-sided p-value, given how often only the one or only the other of two models is right.

    >>> mcnemar(np.array(5.0), np.array(0.0)).tolist()
    0.0625
    """
    found: Floats = np.minimum(1, 2 * binom.cdf(np.minimum(wins, losses), wins + losses, 0.5))
    return found


def holm(p: Floats) -> Floats:
    """Return the p-values corrected for their number after Holm, so that 5 % of all such families err at 0.05.

    >>> holm(np.array([0.01, 0.04, 0.03])).tolist()
    [0.03, 0.06, 0.06]
    """
    order = np.argsort(p, kind="stable")
    steps = np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1))
    corrected = np.empty_like(p)
    corrected[order] = np.minimum(1, steps)
    return corrected
