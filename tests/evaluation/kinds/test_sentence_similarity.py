"""Cosines of two texts' embeddings against those of transformers one by one, and the data that is refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from datasets import Value
from scipy import stats

from merganser.errors import InputError
from merganser.evaluation.scoring import score_of
from tests.evaluation.kinds.test_regression import LABELS
from tests.evaluation.kinds.texts import COUNT, check, classes, data_set, run, sentences
from tests.sentence_encoders import embeddings_one_by_one, write_encoder

KIND, FAMILY = "sentence_similarity", "sentence_encoder"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("encoder")
    write_encoder(folder, "mpnet")
    return folder


@pytest.mark.parametrize(("metric", "reference"), [(None, stats.spearmanr), ("pearson", stats.pearsonr)])
def test_the_score_correlates_the_cosines_of_texts_embedded_alone(
    model: Path, tmp_path: Path, metric: str | None, reference: Any
) -> None:
    data = data_set(Value("float32"), LABELS, pairs=True)
    results = run(data, tmp_path / "data", model, KIND, metric, FAMILY)
    one, other = (embeddings_one_by_one(model, sentences(seed=seed)).astype(np.float64) for seed in (0, 1))
    expected = (one * other).sum(1) / np.linalg.norm(one, axis=1) / np.linalg.norm(other, axis=1)
    assert results.score is None
    np.testing.assert_allclose(results.prediction, expected, atol=1e-6)  # type: ignore[arg-type]
    score = score_of(metric or "spearman", results)
    assert score["value"] == pytest.approx(reference(expected, LABELS).statistic, abs=1e-5)
    assert score["count"] == COUNT


def test_equal_texts_have_a_cosine_of_one_and_longer_ones_are_cut(model: Path, tmp_path: Path) -> None:
    texts = sentences()
    data = data_set(Value("float32"), LABELS, text=texts, pair=texts)
    same = run(data, tmp_path / "data", model, KIND, None, FAMILY)
    np.testing.assert_allclose(same.prediction, 1, atol=1e-12)  # type: ignore[arg-type]
    cut = data_set(Value("float32"), LABELS, text=texts, pair=[f"{text} dog" for text in texts])
    found = run(cut, tmp_path / "data", model, KIND, None, FAMILY, max_length=2).prediction
    np.testing.assert_allclose(found, 1, atol=1e-12)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (data_set(*classes(4, ["low", "high"]), pairs=True), "the label column holds classes, not numbers"),
        (data_set(Value("float64"), LABELS), "has no column 'pair'; it has"),
        (data_set(Value("float64"), LABELS, pairs=True).remove_columns("label"), "has no column 'label'; it has"),
        (data_set(Value("float64"), LABELS, pair=list(range(COUNT))), "the column 'pair' holds int64, not texts"),
    ],
)
def test_data_without_pairs_or_numbers_is_refused(data: Any, message: str) -> None:
    with pytest.raises(InputError, match=f"hub/task: split test.*{message}"):
        check(data, KIND)


@pytest.mark.parametrize(
    ("labels", "pair", "message"),
    [
        ([1.0, None, 2.0], ["a", "dog", "cat"], "has nothing in the column 'label'"),
        ([1.0, float("inf"), 2.0], ["a", "dog", "cat"], "has the label inf"),
        ([1.0, 2.0, 3.0], ["a", None, "cat"], "has nothing in the column 'pair'"),
    ],
)
def test_an_example_without_a_number_or_a_text_is_refused(
    model: Path, tmp_path: Path, labels: list[Any], pair: list[Any], message: str
) -> None:
    with pytest.raises(InputError, match=f"example 1 {message}"):
        run(data_set(Value("float64"), labels, pair=pair), tmp_path / "data", model, KIND, None, FAMILY)
