"""The paired tests of models on the same examples."""

import math

import numpy as np
import pytest
from scipy import stats

from merganser.evaluation.examples import Results, compare_predictions
from merganser.measures.significance import compare_models, holm, mcnemar, mean_of_tasks, over_tasks

COUNT = 400


def models(shares: list[float], seed: int = 0) -> list[Results]:
    """Draw models that are right with these shares on the same examples."""
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, 2, COUNT)
    return [
        compare_predictions("accuracy", np.where(generator.random(COUNT) < share, labels, 1 - labels), labels)
        for share in shares
    ]


@pytest.mark.parametrize(("wins", "losses"), [(5, 0), (10, 3), (30, 31), (0, 0), (7, 7), (200, 120)])
def test_mcnemars_p_value_is_the_binomial_tests(wins: int, losses: int) -> None:
    expected = stats.binomtest(wins, wins + losses).pvalue if wins + losses else 1.0
    assert mcnemar(np.array(float(wins)), np.array(float(losses))) == pytest.approx(expected, rel=1e-9)


def test_all_pairs_are_tested_on_the_examples_where_just_one_is_right() -> None:
    found = models([0.9, 0.8, 0.8])
    pairs = compare_models("accuracy", found)
    for i, first in enumerate(found):
        for j, second in enumerate(found):
            assert first.score is not None
            assert second.score is not None
            wins, losses = int((first.score > second.score).sum()), int((first.score < second.score).sum())
            expected = stats.binomtest(wins, wins + losses).pvalue if wins + losses else 1.0
            assert pairs.p[i, j] == pytest.approx(expected)
            assert pairs.difference[i, j] == pytest.approx(first.score.mean() - second.score.mean())


def test_scores_between_right_and_wrong_are_tested_as_paired_means() -> None:
    generator = np.random.default_rng(0)
    first = generator.random(COUNT)
    second = first + generator.normal(0.02, 0.2, COUNT)
    pairs = compare_models("any", [Results(first), Results(second)])
    t = stats.ttest_rel(first, second).statistic
    assert pairs.p[0, 1] == pytest.approx(2 * stats.norm.sf(abs(t)), rel=1e-9)
    assert pairs.p[0, 0] == 1


@pytest.mark.parametrize("metric", ["matthews", "f1", "spearman", "pearson"])
def test_the_bootstrap_errs_as_often_as_its_level_says(metric: str) -> None:
    """Two models alike: one test in twenty finds a difference; two that differ much are always told apart."""
    found = []
    for seed in range(60):
        generator = np.random.default_rng(seed)
        labels = generator.integers(0, 2, 150)
        noise = generator.normal(0, (0.8, 0.8, 4.0), (150, 3)).T
        numbers = labels + noise
        predictions = numbers if metric in ("spearman", "pearson") else (numbers > 0.5).astype(np.int64)
        found.append(compare_models(metric, [compare_predictions(metric, one, labels) for one in predictions]).p)
    alike = np.mean([p[0, 1] < 0.05 for p in found])
    apart = np.mean([p[0, 2] < 0.05 for p in found])
    assert alike <= 0.11
    assert apart >= 0.8


def test_the_paired_test_sees_more_than_the_errors_of_the_scores() -> None:
    generator = np.random.default_rng(1)
    labels = np.zeros(COUNT, dtype=np.int64)
    first = (generator.random(COUNT) < 0.4).astype(np.int64)
    second = first.copy()
    second[np.flatnonzero(first)[:12]] = 0  # right on all that the first is right on, and on twelve more
    pairs = compare_models("accuracy", [compare_predictions("accuracy", one, labels) for one in (first, second)])
    assert pairs.p[0, 1] < 0.001
    assert abs(pairs.difference[0, 1]) < 2 * math.sqrt(0.6 * 0.4 / COUNT)


def test_the_mean_over_tasks_of_one_size_is_tested_as_one_larger_task() -> None:
    tasks = [models([0.82, 0.8], seed) for seed in range(4)]
    mean = mean_of_tasks([compare_models("accuracy", found) for found in tasks])
    wins, losses = (
        sum(int((sign * (a.score - b.score) > 0).sum()) for a, b in tasks)  # type: ignore[operator]
        for sign in (1, -1)
    )
    assert mean.difference[0, 1] == pytest.approx((wins - losses) / (4 * COUNT))
    z = (abs(wins - losses) - 1) / math.sqrt(wins + losses)  # McNemar's statistic, corrected for continuity
    assert mean.p[0, 1] == pytest.approx(2 * stats.norm.sf(z))
    assert mean.p[0, 1] == pytest.approx(stats.binomtest(wins, wins + losses).pvalue, rel=0.1)
    assert np.diag(mean.p).tolist() == [1, 1]


def test_the_mean_over_one_task_is_tested_as_the_task() -> None:
    right = np.arange(17) < 13  # 13 to 4: p is 0.049 exactly, and 0.052 by the normal distribution
    task = compare_models("accuracy", [Results(right.astype(float)), Results((~right).astype(float))])
    assert mean_of_tasks([task]).p.tolist() == task.p.tolist()


def test_models_that_do_the_same_are_alike_by_any_metric() -> None:
    numbers = np.random.default_rng(0).normal(size=60)
    found = [compare_predictions("spearman", numbers, numbers + 1)] * 3
    assert compare_models("spearman", found).p.tolist() == [[1.0] * 3] * 3
    assert mean_of_tasks([compare_models("spearman", found)] * 2).p.tolist() == [[1.0] * 3] * 3


def test_holm_corrects_each_p_value_by_those_that_are_left() -> None:
    """Holm (1979): the smallest times m, the next times m - 1, ..., never falling."""
    assert holm(np.array([0.01, 0.02, 0.022, 0.5])).tolist() == pytest.approx([0.04, 0.06, 0.06, 0.5])
    assert holm(np.array([0.9, 0.8])).tolist() == [1.0, 1.0]
    assert holm(np.array([])).tolist() == []


def test_a_single_model_and_a_single_example_can_be_compared() -> None:
    assert compare_models("accuracy", [compare_predictions("accuracy", [1], [1])]).p.tolist() == [[1.0]]
    assert compare_models(
        "spearman", [compare_predictions("spearman", [1.0, 2.0, 3.0], [1.0, 2.0, 3.0])]
    ).p.tolist() == [[1.0]]
    assert compare_models("any", [Results(np.array([0.5])), Results(np.array([0.7]))]).p[0, 1] == 1


def test_means_over_seeds_do_not_take_the_exact_test_from_other_pairs() -> None:
    first, second, third = models([0.9, 0.8, 0.7])
    assert second.score is not None
    assert third.score is not None
    seeds = Results((second.score + third.score) / 2, None, first.label)
    alone, beside = compare_models("accuracy", [first, second]), compare_models("accuracy", [first, second, seeds])
    for one, other in zip(alone, beside, strict=True):
        np.testing.assert_allclose(other[:2, :2], one)
    t = stats.ttest_rel(first.score, seeds.score).statistic
    assert beside.p[0, 2] == pytest.approx(2 * stats.norm.sf(abs(t)), rel=1e-9)
    mean = mean_of_tasks([beside, beside])
    np.testing.assert_allclose(mean.p[:2, :2], mean_of_tasks([alone, alone]).p)


def test_over_tasks_the_test_is_the_paired_t_test_and_the_interval_holds_the_mean() -> None:
    generator = np.random.default_rng(0)
    differences = generator.normal(0.02, 0.03, 8)
    found = over_tasks(differences.tolist())
    assert found is not None
    assert found.p == pytest.approx(stats.ttest_rel(differences + 0.7, np.full(8, 0.7)).pvalue)
    assert found.low < differences.mean() < found.high
    assert found == over_tasks(differences.tolist())
    assert over_tasks([0.1, 0.1, 0.1]) is None


def test_the_interval_over_tasks_holds_the_truth_as_often_as_it_says() -> None:
    held = 0
    for seed in range(200):
        found = over_tasks(np.random.default_rng(seed).normal(0.1, 1, 20).tolist())
        assert found is not None
        held += found.low <= 0.1 <= found.high
    assert 0.86 <= held / 200 <= 0.99
