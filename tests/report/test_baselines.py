"""What a metric gives without a model."""

import numpy as np
import pytest
from sklearn.metrics import f1_score

from merganser.evaluation.examples import Results
from merganser.report.sections.scores import Baseline, baseline, below_chance
from tests.report.test_plots import row

LABELS = np.array([0, 1, 1, 2, 1, 0])


def test_chance_is_the_metric_of_every_class_given_to_every_example() -> None:
    found = baseline("a", "macro_f1", Results(prediction=LABELS, label=LABELS))
    spread = np.tile([0, 1, 2], len(LABELS)), np.repeat(LABELS, 3)
    assert found.chance == pytest.approx(f1_score(spread[1], spread[0], average="macro"))
    assert found.majority == pytest.approx(f1_score(LABELS, np.ones(6), average="macro"))
    assert found.classes == 3


def test_correlations_of_classes_are_none_by_chance() -> None:
    found = baseline("a", "matthews", Results(prediction=LABELS, label=LABELS))
    assert found[2:] == pytest.approx((0, 0), abs=1e-12)


@pytest.mark.parametrize("results", [Results(score=np.ones(3)), Results(np.ones(3), np.ones(3), np.ones(3))])
def test_numbers_and_texts_have_no_baseline(results: Results) -> None:
    assert baseline("a", "spearman", results) == Baseline("a")


def test_a_score_of_exactly_chance_is_not_below_it() -> None:
    labels = np.repeat(np.arange(5), 7)
    chance = baseline("task", "accuracy", Results((labels == 0).astype(float), np.zeros_like(labels), labels))
    rows = [row("one_class", "average", 7 / 35, 0.0), row("worse", "average", 6 / 35, 0.0)]
    assert {entry for entry, _ in below_chance(rows, [chance])} == {"worse"}
