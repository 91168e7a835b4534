"""The metrics against scikit-learn's and SciPy's, and the errors that scores carry."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sacrebleu
from nltk.translate.meteor_score import single_meteor_score
from rouge_score.rouge_scorer import RougeScorer
from safetensors.numpy import save_file
from scipy import stats
from sklearn import metrics as sklearn_metrics

from merganser.errors import InputError
from merganser.evaluation.examples import Results, compare_predictions, compare_texts, read_results, write_results
from merganser.evaluation.metrics import METRICS, Floats
from merganser.evaluation.scoring import RESAMPLES, bootstrap, mean_error, resamples, score_of, score_of_seeds
from merganser.measures.significance import compare_models

REFERENCES: dict[str, Any] = {
    "accuracy": sklearn_metrics.accuracy_score,
    "exact_match": sklearn_metrics.accuracy_score,
    "matthews": sklearn_metrics.matthews_corrcoef,
    "f1": lambda labels, predictions: sklearn_metrics.f1_score(labels == 1, predictions == 1, zero_division=0),
    "macro_f1": lambda labels, predictions: sklearn_metrics.f1_score(
        labels, predictions, average="macro", zero_division=0
    ),
    "pearson": lambda labels, predictions: stats.pearsonr(labels, predictions).statistic,
    "spearman": lambda labels, predictions: stats.spearmanr(labels, predictions).statistic,
}
REFERENCES["pearson_spearman"] = lambda labels, predictions: (
    (stats.pearsonr(labels, predictions).statistic + stats.spearmanr(labels, predictions).statistic) / 2
)
REFERENCES |= {"acc": REFERENCES["accuracy"], "acc_norm": REFERENCES["accuracy"], "mcc": REFERENCES["matthews"]}
REFERENCES |= dict.fromkeys(("recall_at_1", "recall_at_10", "mrr_at_10"), lambda labels, scores: np.mean(scores))
REFERENCES |= {f"prompt_level_{how}_acc": REFERENCES["accuracy"] for how in ("strict", "loose")}
CORRELATIONS = ("pearson", "spearman", "pearson_spearman")
OF_TEXTS = [name for name, metric in METRICS.items() if metric.of_texts is not None]
OF_COUNTS = ["entity_f1", "word_accuracy"]
OF_NUMBERS = [name for name in METRICS if name not in (*OF_TEXTS, *OF_COUNTS)]
WROTE = ["the cat sat on the mat .", "a dog ran away", "", "two birds sing a song today", "no"]
GIVEN = [
    ["the cat sat on a mat .", "on the mat a cat sat"],
    ["the dogs run away", "a dog ran far away"],
    ["nothing"],
    ["birds sang a song today", "two birds are singing a song", "today two birds sing a song"],
    ["no"],
]


def given(metric: str, count: int = 40, classes: int = 3, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Draw labels and predictions that fit them in part; the numbers of correlations hold equal ones."""
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, classes, count)
    predictions = np.where(generator.random(count) < 0.6, labels, generator.integers(0, classes, count))
    if metric in CORRELATIONS:
        return predictions + generator.normal(size=count).round(1), labels * 0.5 + 1000
    return predictions, labels


@pytest.mark.parametrize("classes", [2, 3, 7])
@pytest.mark.parametrize("metric", OF_NUMBERS)
def test_a_metric_is_that_of_the_libraries_it_is_known_from(metric: str, classes: int) -> None:
    predictions, labels = given(metric, classes=classes)
    assert METRICS[metric].compute(predictions, labels, None) == pytest.approx(
        REFERENCES[metric](labels, predictions), rel=1e-12
    )


@pytest.mark.parametrize("classes", [3, 20])  # of twenty, resamples of forty examples lack some
@pytest.mark.parametrize("metric", OF_NUMBERS)
def test_a_resample_scores_as_its_examples_written_out(metric: str, classes: int) -> None:
    predictions, labels = given(metric, classes=classes)
    weights = next(resamples(40))[:5]
    found = METRICS[metric].compute(predictions, labels, weights)
    for row, value in zip(weights.astype(int), found, strict=True):
        drawn = np.repeat(np.arange(40), row)
        assert value == pytest.approx(REFERENCES[metric](labels[drawn], predictions[drawn]), rel=1e-9)


@pytest.mark.parametrize("metric", OF_COUNTS)
def test_what_is_counted_of_each_example_is_added_up(metric: str) -> None:
    there = np.random.default_rng(0).integers(1, 9, 40)
    counts = np.stack([there // 2, there - there // 3, there], axis=1).astype(float)
    for row, value in zip(
        weights := next(resamples(40))[:5], METRICS[metric].compute(counts, [], weights), strict=True
    ):
        correct, found, given_ = np.repeat(counts, row.astype(int), axis=0).sum(axis=0)
        precision, recall = correct / found, correct / given_
        assert value == pytest.approx(2 * precision * recall / (precision + recall), rel=1e-12)
    assert METRICS[metric].compute(np.zeros((2, 3)), [], None) == 0


def test_an_answer_that_is_no_class_is_wrong_and_no_further_class() -> None:
    predictions, labels = np.array([0, 0, 1, 1, -1]), np.array([0, 0, 1, 1, 1])
    found = METRICS["macro_f1"].compute(predictions, labels, None)
    assert found == sklearn_metrics.f1_score(labels, predictions, labels=[0, 1], average="macro")


@pytest.mark.parametrize("metric", ["matthews", "f1", *CORRELATIONS])
def test_predictions_that_are_all_the_same_score_nothing(metric: str) -> None:
    assert METRICS[metric].compute([0, 0, 0], [0, 1, 1], None) == 0
    assert METRICS[metric].compute([0.1, 0.1, 0.1], [0.1, 1.7, 1.3], None) == 0


def test_resamples_are_the_same_for_all_models_and_have_the_size_of_the_sample() -> None:
    first = np.concatenate(list(resamples(7)))
    assert first.shape == (RESAMPLES, 7)
    assert (first.sum(1) == 7).all()
    assert (np.concatenate(list(resamples(7))) == first).all()
    assert first.mean(0) == pytest.approx(np.ones(7), abs=0.1)


def test_a_large_sample_is_resampled_in_blocks() -> None:
    blocks = list(resamples(20_000))
    assert len(blocks) > 1
    assert sum(len(block) for block in blocks) == RESAMPLES
    assert all(block.nbytes < 2**26 for block in blocks)


def test_the_error_of_a_share_is_that_of_the_formula() -> None:
    score = score_of("accuracy", compare_predictions("accuracy", [1] * 30 + [0] * 10, [1] * 40))
    assert score == {
        "metric": "accuracy",
        "value": 0.75,
        "count": 40,
        "stderr": pytest.approx(math.sqrt(0.75 * 0.25 / 39)),
    }


@pytest.mark.parametrize("metric", [name for name in OF_NUMBERS if not METRICS[name].is_mean])
def test_the_bootstrap_error_is_that_of_many_samples(metric: str) -> None:
    """Draw the sample itself many times: its scores spread as the bootstrap of one sample says."""
    spread = np.std([METRICS[metric].compute(*given(metric, 300, 2, seed), None) for seed in range(200)], ddof=1)
    score = score_of(metric, compare_predictions(metric, *given(metric, 300, 2)))
    assert score["stderr"] == pytest.approx(spread, rel=0.25)
    assert score_of(metric, compare_predictions(metric, *given(metric, 300, 2))) == score


def test_the_bootstrap_of_a_mean_has_the_error_of_the_mean() -> None:
    predictions, labels = given("accuracy", 200)
    scores: Floats = (predictions == labels).astype(float)
    assert bootstrap("accuracy", [predictions], labels).std(ddof=1) == pytest.approx(mean_error(scores), rel=0.06)


def test_one_example_has_a_score_and_no_error() -> None:
    assert score_of("accuracy", compare_predictions("accuracy", [1], [1])) == {
        "metric": "accuracy",
        "value": 1.0,
        "count": 1,
        "stderr": None,
    }
    assert score_of("spearman", compare_predictions("spearman", [1.5], [1.0]))["stderr"] is None


def test_results_are_read_back_as_they_were_written(tmp_path: Path) -> None:
    file = tmp_path / "entry/task.safetensors"
    for metric in ("accuracy", "spearman"):
        results = compare_predictions(metric, *given(metric))
        write_results(file, results)
        found = read_results(file)
        assert len(found) == 40
        for name, values in vars(results).items():
            assert np.array_equal(vars(found)[name], values) if values is not None else vars(found)[name] is None
    assert [path.name for path in file.parent.iterdir()] == ["task.safetensors"]


def test_texts_are_kept_as_scores_alone() -> None:
    results = compare_predictions("exact_match", ["yes", "no", "maybe"], ["yes", "yes", "maybe"])
    assert (results.prediction, results.label) == (None, None)
    assert score_of("exact_match", results)["value"] == pytest.approx(2 / 3)


def corpus(metric: str, rows: Sequence[int]) -> float:
    """Score some of the texts by the libraries themselves."""
    found, references = [WROTE[row] for row in rows], [GIVEN[row] for row in rows]
    if metric in ("bleu", "chrf"):
        streams = [[each[i] if i < len(each) else None for each in references] for i in range(3)]
        score = (sacrebleu.corpus_bleu if metric == "bleu" else sacrebleu.corpus_chrf)(found, streams)
        return float(score.score) / 100
    if metric == "rouge_l":
        scorer = RougeScorer(["rougeL"])
        each = [
            max(scorer.score(one, text)["rougeL"].fmeasure for one in many)
            for text, many in zip(found, references, strict=True)
        ]
    else:
        words = [text.split() for text in found]
        each = [
            max(single_meteor_score(one.split(), text, wordnet=NoSynonyms()) for one in many)
            for text, many in zip(words, references, strict=True)
        ]
    return float(np.mean(each))


class NoSynonyms:
    def synsets(self, word: str) -> list[str]:
        return []


@pytest.mark.parametrize("metric", [name for name in OF_TEXTS if not name.startswith("squad")])  # of a script
def test_a_metric_of_texts_is_that_of_the_library_it_is_known_from(metric: str, tmp_path: Path) -> None:
    results = compare_texts(metric, WROTE, GIVEN)
    write_results(tmp_path / "task.safetensors", results)
    results = read_results(tmp_path / "task.safetensors")
    score = score_of(metric, results)
    assert score["value"] == pytest.approx(corpus(metric, range(5)), rel=1e-12)
    assert score["stderr"]
    assert 0.3 < score["value"] < 0.9
    assert score_of(metric, results.at([0, 3]))["value"] == pytest.approx(corpus(metric, [0, 3]), rel=1e-12)


@pytest.mark.parametrize("metric", ["bleu", "chrf"])
def test_a_resample_of_texts_scores_as_its_texts_written_out(metric: str) -> None:
    results = compare_texts(metric, WROTE, GIVEN)
    weights = next(resamples(5))[:5]
    assert results.prediction is not None
    found = METRICS[metric].compute(results.prediction, np.zeros(5), weights)
    for row, value in zip(weights.astype(int), found, strict=True):
        assert value == pytest.approx(corpus(metric, np.repeat(np.arange(5), row).tolist()), rel=1e-12)


def test_models_that_wrote_texts_are_compared_in_pairs_and_other_references_are_told() -> None:
    one, other = (compare_texts("bleu", texts, GIVEN) for texts in (WROTE, [each[0] for each in GIVEN]))
    pairs = compare_models("bleu", [one, other])
    assert pairs.difference[1, 0] == pytest.approx(1 - corpus("bleu", range(5)))
    assert one.label is not None
    assert other.label is not None
    assert (one.label == other.label).all()
    assert (compare_texts("bleu", WROTE, GIVEN[::-1]).label != one.label).any()


def test_a_file_that_holds_no_results_is_named(tmp_path: Path) -> None:
    file = tmp_path / "task.safetensors"
    with pytest.raises(InputError, match=r"task\.safetensors: missing"):
        read_results(file)
    file.write_bytes(b"\x00" * 20)
    with pytest.raises(InputError, match=r"task\.safetensors: not a whole file"):
        read_results(file)
    save_file({"weight": np.ones(3)}, file)
    with pytest.raises(InputError, match=r"holds weight; expected score"):
        read_results(file)
    save_file({"score": np.ones(3), "label": np.ones(2)}, file)
    with pytest.raises(InputError, match="not of one length"):
        read_results(file)


def test_what_has_neither_scores_nor_predictions_has_no_length() -> None:
    with pytest.raises(AssertionError, match="without scores"):
        len(Results())


def test_the_score_of_several_seeds_is_their_mean_with_the_error_of_the_examples_means() -> None:
    runs = [Results(np.array(scores)) for scores in ([1.0, 1.0, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0])]
    assert score_of_seeds("accuracy", runs) == {
        "metric": "accuracy",
        "value": 0.375,
        "count": 4,
        "stderr": pytest.approx(np.std([1, 0.5, 0, 0], ddof=1) / 2),
        "seeds": [0.5, 0.25],
        "spread": pytest.approx(0.25 / math.sqrt(2)),
    }
    assert score_of_seeds("accuracy", runs[:1]) == score_of("accuracy", runs[0])


def test_seeds_of_a_metric_that_is_no_mean_have_the_mean_of_their_errors() -> None:
    generator = np.random.default_rng(0)
    labels = generator.normal(size=50)
    runs = [compare_predictions("pearson", labels + generator.normal(size=50), labels) for _ in range(3)]
    found, each = score_of_seeds("pearson", runs), [score_of("pearson", results) for results in runs]
    assert found["stderr"] == pytest.approx(sum(one["stderr"] or 0 for one in each) / 3)
    assert found["value"] == pytest.approx(sum(one["value"] for one in each) / 3)
