"""How far a measure goes with the score that is lost: correlations with intervals that respect what points share.

Points of one entry, task or subset are not independent. Intervals are of a bootstrap over such groups, drawn whole.
Legend: n points, G groups, B resamples.
"""

from collections.abc import Hashable, Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

Floats = NDArray[np.float64]
RESAMPLES = 1000
FEWEST = 4  # groups, below which a bootstrap says nothing
WITHIN = (2.5, 97.5)  # per cent of the resamples


class Estimate(NamedTuple):
    """A correlation and its 95 % interval; NaN where it is not defined."""

    value: float
    low: float
    high: float


class Correlation(NamedTuple):
    """A measure and the lost score over n points in so many groups."""

    points: int
    groups: int
    spearman: Estimate
    pearson: Estimate


def correlate(measure: Floats, lost: Floats, groups: Sequence[Hashable]) -> Correlation:
    """Correlate two rows of n numbers, leaving out points where either is NaN.

    Resamples of Spearman's correlation keep the ranks of all points. No interval from fewer than four groups.

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
    found = _weighted(x, y, weights)
    found = found[~np.isnan(found)]
    low, high = np.percentile(found, WITHIN) if len(found) else (np.nan, np.nan)
    return Estimate(value, float(low), float(high))


def _weighted(x: Floats, y: Floats, weights: Floats) -> Floats:
    """Return Pearson's correlation under each row of weights (B, n), NaN where a side does not vary."""
    if len(x) < 2:
        return np.full(len(weights), np.nan)
    x, y = (side - side.mean() for side in (x, y))
    total = weights.sum(1)
    of_x, of_y, of_xx, of_yy, of_xy = (weights @ np.stack([x, y, x * x, y * y, x * y], axis=1) / total[:, None]).T
    spread = np.maximum(of_xx - of_x**2, 0) * np.maximum(of_yy - of_y**2, 0)
    varies = spread > np.finfo(np.float64).eps * (x @ x) * (y @ y) / len(x) ** 2
    return np.divide(of_xy - of_x * of_y, np.sqrt(spread), out=np.full(len(total), np.nan), where=varies)
