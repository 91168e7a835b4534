from math import isnan

import numpy as np
import pytest
from scipy.stats import pearsonr, spearmanr

from merganser.measures.significance import correlate


def drawn(groups: int, each: int, shared: float) -> tuple[np.ndarray, np.ndarray, list[int]]:
    """Draw points of which those of a group share a part of what they are."""
    generator = np.random.default_rng(3)
    common = generator.normal(size=(2, groups)).repeat(each, axis=1)
    x, y = shared * common + (1 - shared) * generator.normal(size=(2, groups * each))
    return x, y + 0.5 * x, [group for group in range(groups) for _ in range(each)]


def test_the_correlations_are_scipys() -> None:
    x, y, groups = drawn(12, 3, 0.3)
    x[:4] = x[0]  # equal numbers share their rank
    found = correlate(x, y, groups)
    assert (found.points, found.groups) == (36, 12)
    assert found.spearman.value == pytest.approx(spearmanr(x, y).statistic)
    assert found.pearson.value == pytest.approx(pearsonr(x, y).statistic)


def test_the_interval_of_independent_points_is_about_that_of_fishers_z() -> None:
    x, y, groups = drawn(200, 1, 0.0)
    found = correlate(x, y, groups).pearson
    low, high = pearsonr(x, y).confidence_interval()
    assert (found.low, found.high) == pytest.approx((low, high), abs=0.05)


def test_points_that_share_a_group_count_as_one_draw() -> None:
    x, y, groups = drawn(10, 20, 0.9)
    by_group, by_point = correlate(x, y, groups).pearson, correlate(x, y, list(range(len(x)))).pearson
    assert by_group.value == by_point.value
    assert by_group.high - by_group.low > 2 * (by_point.high - by_point.low)


def test_an_interval_of_resamples_is_that_of_a_plain_loop_over_them() -> None:
    x, y, groups = drawn(6, 2, 0.5)
    found, values = correlate(x, y, groups).pearson, []
    counts = np.random.default_rng(0).multinomial(6, np.full(6, 1 / 6), size=1000)
    for count in counts:
        places = [place for place, group in enumerate(groups) for _ in range(count[group])]
        if len(set(places)) > 1:
            values.append(pearsonr(x[places], y[places]).statistic)
    assert (found.low, found.high) == pytest.approx(tuple(np.percentile(values, (2.5, 97.5))))


def test_few_groups_have_no_interval_and_what_does_not_vary_has_nothing() -> None:
    x, y, groups = drawn(3, 4, 0.3)
    found = correlate(x, y, groups)
    assert not isnan(found.spearman.value)
    assert isnan(found.spearman.low)
    assert isnan(correlate(np.ones(8), np.arange(8.0), list(range(8))).pearson.value)
    assert isnan(correlate(np.array([]), np.array([]), []).spearman.value)


def test_points_without_a_number_are_left_out() -> None:
    x, y, groups = drawn(8, 1, 0.0)
    x[2] = np.nan
    found, whole = correlate(x, y, groups), correlate(np.delete(x, 2), np.delete(y, 2), list(range(7)))
    assert found == whole
