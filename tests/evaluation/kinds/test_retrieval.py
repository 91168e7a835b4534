"""Ranks of passages against sorted cosines of transformers' embeddings, ties, and the data that is refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from datasets import Value

from merganser.errors import InputError
from merganser.evaluation.kinds import retrieval
from merganser.evaluation.kinds.retrieval import METRICS, ranks_of, scores_of
from merganser.evaluation.scoring import score_of
from tests.evaluation.kinds.texts import check, data_set, run, sentences
from tests.sentence_encoders import embeddings_one_by_one, write_encoder

KIND, FAMILY, COUNT = "retrieval", "sentence_encoder", 60
QUERIES = [*sentences(COUNT - 10), *sentences(COUNT)[5:15]]  # some have two passages
ANSWERS = [*sentences(COUNT - 6, seed=1), *sentences(6, seed=1)]  # and some passages answer two
PASSAGES = [answer if row % 4 else f"{QUERIES[row]} ." for row, answer in enumerate(ANSWERS)]  # and some are near


def passages(queries: list[str], answers: list[str]) -> Any:
    """Make the split `test` of queries and their passages."""
    return data_set(Value("int64"), [0] * len(queries), text=queries, pair=answers).remove_columns("label")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("encoder")
    write_encoder(folder, "roberta")
    return folder


def ranks(model: Path) -> np.ndarray:
    """Sort each query's candidates by a plain loop."""
    embedded, found = dict(zip(PASSAGES, embeddings_one_by_one(model, PASSAGES), strict=True)), []
    vectors = embeddings_one_by_one(model, QUERIES)
    for query, vector, answer in zip(QUERIES, vectors, PASSAGES, strict=True):
        right = {own for text, own in zip(QUERIES, PASSAGES, strict=True) if text == query}
        near = {
            text: float(vector @ own / np.linalg.norm(vector) / np.linalg.norm(own))
            for text, own in embedded.items()
            if text == answer or text not in right
        }
        found.append(sorted(near, key=near.__getitem__, reverse=True).index(answer) + 1)
    return np.array(found)


@pytest.fixture(scope="module")
def expected(model: Path) -> np.ndarray:
    return ranks(model)


@pytest.mark.parametrize("metric", METRICS)
def test_the_score_is_that_of_sorted_candidates(
    model: Path, tmp_path: Path, expected: np.ndarray, metric: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retrieval, "NUMBERS", 200)  # a few queries at a time
    results = run(passages(QUERIES, PASSAGES), tmp_path / "data", model, KIND, metric, FAMILY)
    assert results.score is not None
    values = {
        "recall_at_1": expected == 1,
        "recall_at_10": expected <= 10,
        "mrr_at_10": np.where(expected <= 10, 1 / expected, 0),
    }
    assert results.score.tolist() == values[metric].astype(float).tolist()
    assert 0 < values[metric].mean() < 1
    score = score_of(metric, results)
    assert score["value"] == pytest.approx(values[metric].mean(), abs=1e-12)
    assert score["count"] == COUNT
    assert score["stderr"] == pytest.approx(values[metric].std(ddof=1) / np.sqrt(COUNT))


def test_ties_count_against_whatever_the_order(model: Path, tmp_path: Path) -> None:
    same = torch.ones(4, 2, dtype=torch.float64) / 2**0.5
    assert ranks_of(same, same, torch.arange(4), torch.arange(4)).tolist() == [4] * 4
    assert ranks_of(same, same, torch.zeros(4, dtype=torch.int64), torch.arange(4)).tolist() == [1] * 4  # all right
    words = ["the cat sat on the mat", "the cat sat on the dog", "the cat sat", "the cat sat on a red mat"]
    found = run(passages(words, words), tmp_path / "data", model, KIND, "mrr_at_10", FAMILY, max_length=4)
    assert found.score is not None
    assert found.score.tolist() == [1 / 4, 1 / 4, 1 / 4, 1 / 4]  # all are cut to one text


def test_a_text_is_read_once_and_other_rights_are_no_candidates() -> None:
    queries = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]], dtype=torch.float64)
    answers = torch.tensor([[0.8, 0.6], [0.6, 0.8], [1.0, 0.0]], dtype=torch.float64)
    alone = ranks_of(queries, answers, torch.arange(3), torch.arange(3))
    assert alone.tolist() == [2, 3, 3]
    assert ranks_of(queries, answers, torch.tensor([0, 0, 2]), torch.arange(3)).tolist() == [2, 2, 3]
    assert scores_of("mrr_at_10", alone).tolist() == [1 / 2, 1 / 3, 1 / 3]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (passages(["a"], ["dog"]).remove_columns("pair"), "has no column 'pair'; it has"),
        (data_set(Value("int64"), [1], text=["a"], pair=["dog"]), "has a column 'label', and every pair of this kind"),
    ],
)
def test_data_without_passages_or_with_labels_is_refused(data: Any, message: str) -> None:
    with pytest.raises(InputError, match=f"hub/task: split test.*{message}"):
        check(data, KIND)


def test_an_example_without_a_passage_is_refused(model: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="example 1 has nothing in the column 'pair'"):
        run(passages(["a", "b"], ["dog", None]), tmp_path / "data", model, KIND, None, FAMILY)  # type: ignore[list-item]
