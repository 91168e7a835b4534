"""Numbers of texts against what transformers itself says of them one by one, and the data that is refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from datasets import Array2D, Value
from scipy import stats

from merganser.errors import InputError
from merganser.evaluation.scoring import score_of
from tests.evaluation.kinds.test_text_classification import logits_one_by_one
from tests.evaluation.kinds.texts import COUNT, check, classes, data_set, run, sentences
from tests.tiny_transformers import write_model

KIND = "regression"
LABELS = np.random.default_rng(3).uniform(0, 5, COUNT).round(1).tolist()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give the folder of an encoder with a head of one output."""
    folder = tmp_path_factory.mktemp("encoder")
    write_model(folder, "bert", 1)
    return folder


@pytest.mark.parametrize(("metric", "reference"), [(None, stats.spearmanr), ("pearson", stats.pearsonr)])
def test_the_score_correlates_what_transformers_gives_each_pair_alone(
    model: Path, tmp_path: Path, metric: str | None, reference: Any
) -> None:
    results = run(data_set(Value("float32"), LABELS, pairs=True), tmp_path / "data", model, KIND, metric)
    expected = logits_one_by_one(model, list(zip(sentences(), sentences(seed=1), strict=True)))[:, 0]
    assert results.score is None
    np.testing.assert_allclose(results.prediction, expected, rtol=1e-5, atol=1e-6)  # type: ignore[arg-type]
    score = score_of(metric or "spearman", results)
    assert score["value"] == pytest.approx(reference(expected, LABELS).statistic, abs=1e-5)
    assert score["count"] == COUNT


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (data_set(*classes(4, ["low", "high"])), "the label column holds classes, not numbers"),
        (data_set(Value("string"), ["1.0", "2.0"]), "the label column holds string, not numbers"),
        (data_set(Array2D((1, 1), "float32"), [[[1.0]]]), "the label column holds Array2D"),
        (data_set(Value("float64"), LABELS).remove_columns("label"), "has no column 'label'; it has"),
        (data_set(Value("float64"), LABELS, text=None, sentence=sentences()), "has no column 'text'"),
    ],
)
def test_data_without_texts_or_numbers_is_refused(data: Any, message: str) -> None:
    with pytest.raises(InputError, match=f"hub/task: split test.*{message}"):
        check(data, KIND)


@pytest.mark.parametrize(
    ("label", "message"),
    [
        (None, "has nothing in the column"),
        (float("nan"), "has nothing in the column"),
        (float("inf"), "has the label inf"),
    ],
)
def test_an_example_without_a_number_is_refused(model: Path, tmp_path: Path, label: float | None, message: str) -> None:
    with pytest.raises(InputError, match=f"example 1 {message}"):
        run(data_set(Value("float64"), [1.0, label, 2.0]), tmp_path / "data", model, KIND)
