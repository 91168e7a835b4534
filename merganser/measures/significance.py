"""Which models differ by more than chance, and which measures go with the score that is lost.

Differences between E models on the same examples: of 1 and 0 (right or wrong) McNemar's exact test; of metrics other
than means the paired bootstrap's standard error and the normal distribution; of other scores the same with the sample's
own error, which a bootstrap of means would tend to. Correlations between a measure and the score that is lost have
intervals of a bootstrap over whole groups, since points of one entry, task or subset are not independent.

Legend: n points, G groups, B resamples.
"""

from collections.abc import Hashable, Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
from scipy.stats import binom, norm, rankdata, ttest_1samp
from scipy.stats import bootstrap as scipy_bootstrap

from merganser.evaluation.examples import Results
from merganser.evaluation.metrics import METRICS, Floats
from merganser.evaluation.scoring import bootstrap

ROUNDING = 1e-9  # of scores: differences closer than that are the same


class Pairs(NamedTuple):
    """All pairs of E models on one task, or on several: each of (E, E), the first model's index first."""

    difference: Floats  # of the first model's value from the second's
    variance: Floats  # of that difference
    p: Floats  # two-sided, of no difference
    step: Floats  # the least difference there can be, 0 where values are not counts


def compare_models(metric: str, models: Sequence[Results], known: Sequence[float] | None = None) -> Pairs:
    """Compare E models' results on one task's examples; `known`: their scores, if results are of the first seed."""
    scores = [model.score for model in models if model.score is not None]
    if not scores:
        predictions = [model.prediction for model in models if model.prediction is not None]
        label = models[0].label
        assert label is not None, "results without scores and without labels"
        values = [METRICS[metric].compute(one, label, None) for one in predictions] if known is None else known
        return _by_error(np.array(values), np.cov(bootstrap(metric, predictions, label)))
    stacked = np.stack(scores)
    whole = np.isin(stacked, (0, 1)).all(axis=1)  # the others are means over seeds, or no counts at all
    counted = _by_counts(stacked)
    if whole.all():
        return counted
    count = stacked.shape[1]
    means = _by_error(stacked.mean(1), np.cov(stacked) / count if count > 1 else np.zeros((len(stacked),) * 2))
    both = np.logical_and.outer(whole, whole)
    return Pairs(*(np.where(both, one, other) for one, other in zip(counted, means, strict=True)))


def _by_counts(scores: Floats) -> Pairs:
    """Compare models that are right (1) or wrong (0) on N examples (E, N); the variance assumes no difference."""
    wins = scores @ (1 - scores).T
    losses, count = wins.T, scores.shape[1]
    step = np.full_like(wins, 1 / count)
    return Pairs((wins - losses) / count, (wins + losses) / count**2, mcnemar(wins, losses), step)


def _by_error(values: Floats, covariance: Floats) -> Pairs:
    covariance = np.atleast_2d(covariance)
    spread = np.diag(covariance)
    variance = np.maximum(spread[:, None] + spread - 2 * covariance, 0)
    difference = values[:, None] - values
    return Pairs(difference, variance, _two_sided(np.abs(difference), variance), np.zeros_like(variance))


def mean_of_tasks(tasks: Sequence[Pairs]) -> Pairs:
    """Compare means over independently sampled tasks; counts with McNemar's continuity correction."""
    if len(tasks) == 1:
        return tasks[0]
    difference = np.mean([task.difference for task in tasks], axis=0)
    variance = np.sum([task.variance for task in tasks], axis=0) / len(tasks) ** 2
    steps = np.array([task.step for task in tasks])
    step = np.where((steps > 0).all(axis=0), steps.max(axis=0) / len(tasks), 0.0)
    return Pairs(difference, variance, _two_sided(np.abs(difference) - step, variance), step)


def _two_sided(distance: Floats, variance: Floats) -> Floats:
    """Return the two-sided p-value of the normal distribution; 1 if there is no spread."""
    errors = np.sqrt(variance)
    z = np.divide(distance, errors, out=np.zeros_like(errors), where=errors > 0)
    return np.minimum(1, 2 * norm.sf(np.maximum(z, 0)))


class OverTasks(NamedTuple):
    """The mean difference of two models over tasks, as if the tasks were drawn at random."""

    low: float  # of its 95 % interval, by a bootstrap over the tasks
    high: float
    p: float  # two-sided paired t-test


def over_tasks(differences: Sequence[float]) -> OverTasks | None:
    """Test a difference by its values on each task; None for one task, or if all values are equal.

    >>> over_tasks([0.1, 0.2, 0.3]).p < 0.1, over_tasks([0.1])
    (True, None)
    """
    if len(differences) < 2 or np.ptp(differences) < ROUNDING:
        return None
    drawn = np.random.default_rng(0)
    interval = scipy_bootstrap((differences,), np.mean, method="percentile", n_resamples=2000, rng=drawn)
    low, high = interval.confidence_interval
    return OverTasks(float(low), float(high), float(ttest_1samp(differences, 0).pvalue))


def mcnemar(wins: Floats, losses: Floats) -> Floats:
    """Return McNemar's exact two-sided p-value from the numbers of examples that only one of two models gets right.

    >>> mcnemar(np.array(5.0), np.array(0.0)).tolist()
    0.0625
    """
    p: Floats = np.minimum(1, 2 * binom.cdf(np.minimum(wins, losses), wins + losses, 0.5))
    return p


def holm(p: Floats) -> Floats:
    """Return p-values with Holm's correction: at 0.05, at most 5 % of such families have an error.

    >>> holm(np.array([0.01, 0.04, 0.03])).tolist()
    [0.03, 0.06, 0.06]
    """
    order = np.argsort(p, kind="stable")
    steps = np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1))
    corrected = np.empty_like(p)
    corrected[order] = np.minimum(1, steps)
    return corrected


RESAMPLES = 1000
FEWEST = 4  # groups, below which a bootstrap says nothing
WITHIN = (2.5, 97.5)  # per cent of the resamples


class Estimate(NamedTuple):
    """A correlation and its 95 % interval; NaN if it is not defined."""

    value: float
    low: float
    high: float


class Correlation(NamedTuple):
    """The correlation of a measure with the lost score, over n points in so many groups."""

    points: int
    groups: int
    spearman: Estimate
    pearson: Estimate


def correlate(measure: Floats, lost: Floats, groups: Sequence[Hashable]) -> Correlation:
    """Correlate two rows of n numbers, without points that have NaN.

    Spearman's resamples keep the ranks of all points. There is no interval for fewer than four groups.

    >>> found = correlate(np.array([1.0, 2.0, 3.0]), np.array([1.0, 4.0, 9.0]), ["a", "b", "c"])
    >>> found.points, round(found.spearman.value, 6), found.spearman.low
    (3, 1.0, nan)
    """
    known = ~(np.isnan(measure) | np.isnan(lost))
    x, y = measure[known], lost[known]
    names = [group for group, is_known in zip(groups, known, strict=True) if is_known]
    places = {group: place for place, group in enumerate(dict.fromkeys(names))}
    counts = _resamples(len(places)) if len(places) >= FEWEST else np.empty((0, len(places)))
    weights = counts[:, [places[group] for group in names]]
    spearman = _estimate(rankdata(x), rankdata(y), weights)
    return Correlation(len(x), len(places), spearman, _estimate(x, y, weights))


@cache
def _resamples(groups: int) -> Floats:
    """Draw how often each group is in each resample: (B, G), the same numbers for the same count."""
    drawn = np.random.default_rng(0).multinomial(groups, np.full(groups, 1 / groups), size=RESAMPLES)
    return drawn.astype(np.float64)


def _estimate(x: Floats, y: Floats, weights: Floats) -> Estimate:
    value = float(_weighted(x, y, np.ones((1, len(x))))[0]) if len(x) else np.nan
    correlations = _weighted(x, y, weights)
    correlations = correlations[~np.isnan(correlations)]
    low, high = np.percentile(correlations, WITHIN) if len(correlations) else (np.nan, np.nan)
    return Estimate(value, float(low), float(high))


def _weighted(x: Floats, y: Floats, weights: Floats) -> Floats:
    """Return Pearson's correlation under each row of weights (B, n); NaN if a side is constant."""
    if len(x) < 2:
        return np.full(len(weights), np.nan)
    x, y = (side - side.mean() for side in (x, y))
    total = weights.sum(1)
    of_x, of_y, of_xx, of_yy, of_xy = (weights @ np.stack([x, y, x * x, y * y, x * y], axis=1) / total[:, None]).T
    spread = np.maximum(of_xx - of_x**2, 0) * np.maximum(of_yy - of_y**2, 0)
    varies = spread > np.finfo(np.float64).eps * (x @ x) * (y @ y) / len(x) ** 2
    return np.divide(of_xy - of_x * of_y, np.sqrt(spread), out=np.full(len(total), np.nan), where=varies)
