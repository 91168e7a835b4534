"""Metrics: how well N predictions fit their labels, as fractions in [0, 1] or [-1, 1].

Every metric takes `weights` (..., N), how often each example counts: a bootstrap's resamples are rows of counts.
Without them each example counts once. A metric that is not defined (all predictions equal, a class that never occurs)
is 0.

Texts that a model wrote are compared with one reference or several, by the libraries that the metrics are known from. A
metric is the mean of each example's score, (N,), or follows from the sum of each example's counts, (N, K): then a
resample's is computed without reading the texts again. Legend: N examples, K counts.
"""

import re
import string
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from itertools import zip_longest
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from merganser.extras import naming_extras

Floats = NDArray[np.float64]
References = Sequence[Sequence[str]]  # of each example one or more


def corpus_counts(name: Literal["BLEU", "CHRF"]) -> Callable[[Sequence[str], References], Floats]:
    """Return a function that counts an example's n-grams, and matches with its references, for sacrebleu's metric.

    >>> corpus_counts("BLEU")(["a b c d e"], [["a b c d f"]]).tolist()  # lengths, n-grams that match, n-grams
    [[5.0, 5.0, 4.0, 3.0, 2.0, 1.0, 5.0, 4.0, 3.0, 2.0]]
    """

    def counts(predictions: Sequence[str], references: References) -> Floats:
        streams = list(zip_longest(*references))
        return np.array(_sacrebleu(name)._extract_corpus_statistics(predictions, streams), dtype=np.float64)

    return counts


def corpus_score(name: Literal["BLEU", "CHRF"]) -> Callable[[ArrayLike, ArrayLike, Floats | None], Floats]:
    """Return a function that computes sacrebleu's metric from examples' counts, as a fraction.

    >>> counts = corpus_counts("BLEU")(["a b c d e"], [["a b c d f"]])
    >>> float(corpus_score("BLEU")(counts, [0.0], None).round(4))
    0.6687
    """

    def score(counts: ArrayLike, labels: ArrayLike, weights: Floats | None = None) -> Floats:
        rows = np.asarray(counts, dtype=np.float64)
        sums = (np.ones(len(rows)) if weights is None else weights) @ rows
        scores = [
            _sacrebleu(name)._compute_score_from_stats(list(row)).score for row in sums.reshape(-1, rows.shape[1])
        ]
        return np.array(scores).reshape(sums.shape[:-1]) / 100

    return score


@cache
def _sacrebleu(name: str) -> Any:
    with naming_extras():
        from sacrebleu import metrics
    return getattr(metrics, name)(force=True) if name == "BLEU" else getattr(metrics, name)()


def rouge_l(predictions: Sequence[str], references: References) -> Floats:
    """Return each example's ROUGE-L, the best over its references (rouge-score, without stemming).

    >>> rouge_l(["the cat sat"], [["the cat", "a dog"]]).round(4).tolist()
    [0.8]
    """
    with naming_extras():
        from rouge_score.rouge_scorer import RougeScorer
    scorer = RougeScorer(["rougeL"])
    pairs = zip(predictions, references, strict=True)
    return np.array([scorer.score_multi(given, text)["rougeL"].fmeasure for text, given in pairs], dtype=np.float64)


def meteor_stems(predictions: Sequence[str], references: References) -> Floats:
    """Return each example's METEOR, the best over its references, by words and their stems (nltk's), without synonyms.

    >>> meteor_stems(["the cats sat"], [["a dog", "the cat sat"]]).round(4).tolist()
    [0.9815]
    """
    with naming_extras():
        from nltk.translate.meteor_score import meteor_score
        from sacrebleu.tokenizers.tokenizer_13a import Tokenizer13a
    words = Tokenizer13a()
    pairs = zip(predictions, references, strict=True)
    values = [
        meteor_score([words(each).split() for each in given], words(text).split(), wordnet=_NoSynonyms())
        for text, given in pairs
    ]
    return np.array(values, dtype=np.float64)


class _NoSynonyms:
    """A replacement for WordNet, which nltk would download and no Python package has."""

    def synsets(self, word: str) -> list[Any]:
        """Return none."""
        return []


def squad_exact_match(predictions: Sequence[str], references: References) -> Floats:
    """Return for each example whether it equals one of its references by SQuAD's rules (Rajpurkar et al., 2016).

    Case, punctuation, articles and repeated spaces do not count.

    >>> squad_exact_match(["The cat.", "dog"], [["a cat"], ["dogs"]]).tolist()
    [1.0, 0.0]
    """
    pairs = zip(predictions, references, strict=True)
    return np.array([float(_squad_words(text) in map(_squad_words, given)) for text, given in pairs])


def squad_f1(predictions: Sequence[str], references: References) -> Floats:
    """Return each example's F1 of words, the best over its references, by SQuAD's rules (Rajpurkar et al., 2016).

    >>> squad_f1(["the black cat"], [["a cat", "dog"]]).round(4).tolist()
    [0.6667]
    """
    pairs = zip(predictions, references, strict=True)
    return np.array([max(_words_f1(_squad_words(text), _squad_words(each)) for each in given) for text, given in pairs])


def _squad_words(text: str) -> list[str]:
    """Return the words that count."""
    plain = "".join(sign for sign in text.lower() if sign not in string.punctuation)
    return re.sub(r"\b(a|an|the)\b", " ", plain).split()


def _words_f1(predicted: list[str], given: list[str]) -> float:
    """Return 2 c / (f + g), with c common words; if one side has no words, whether both have none."""
    if not predicted or not given:
        return float(predicted == given)
    return 2 * (Counter(predicted) & Counter(given)).total() / (len(predicted) + len(given))


CONSTANT = 1e-12  # a variance below this share of the whole sample's is rounding


def accuracy(predictions: ArrayLike, labels: ArrayLike, weights: Floats | None = None) -> Floats:
    """Return the share of the predictions that equal their label: sum [p = l] / N.

    >>> float(accuracy([1, 0, 2, 2], [1, 0, 2, 0]))
    0.75
    """
    equal = np.equal(predictions, labels).astype(np.float64)
    counts = _weights(weights, equal)
    return _ratio(counts @ equal, counts.sum(-1))


def matthews(predictions: ArrayLike, labels: ArrayLike, weights: Floats | None = None) -> Floats:
    """Return Matthews' correlation (c N - sum_k p_k l_k) / sqrt((N^2 - sum_k p_k^2) (N^2 - sum_k l_k^2)).

    c counts the correct predictions, p_k and l_k the predictions and labels of class k.

    >>> float(matthews([1, 1, 0, 0], [1, 0, 0, 0]).round(4))
    0.5774
    """
    hits, predicted, labelled, total = _counts(predictions, labels, weights)
    covariance = hits.sum(-1) * total - (predicted * labelled).sum(-1)
    spread = (total**2 - (predicted**2).sum(-1)) * (total**2 - (labelled**2).sum(-1))
    return _ratio(covariance, np.sqrt(spread))


def f1(predictions: ArrayLike, labels: ArrayLike, weights: Floats | None = None) -> Floats:
    """Return F1 of class 1: 2 c_1 / (p_1 + l_1), the harmonic mean of its precision and its recall.

    >>> float(f1([1, 1, 0, 0], [1, 0, 0, 1]))
    0.5
    """
    return macro_f1(np.equal(predictions, 1), np.equal(labels, 1), weights, classes=[True])


def macro_f1(
    predictions: ArrayLike, labels: ArrayLike, weights: Floats | None = None, classes: ArrayLike | None = None
) -> Floats:
    """Return the mean F1 of the classes; by default of those that occur as a prediction or a label.

    An answer that is no class has a number below 0.

    >>> float(macro_f1([1, 1, 0, 0], [1, 0, 0, 0]).round(4))
    0.7333
    """
    if classes is None:
        values = np.union1d(predictions, labels)
        classes = values[values >= 0]
    hits, predicted, labelled, _ = _counts(predictions, labels, weights, classes)
    occur = predicted + labelled  # 0 for a class that a resample lacks
    return _ratio(_ratio(2 * hits, occur).sum(-1), (occur > 0).sum(-1))


def pearson(predictions: ArrayLike, labels: ArrayLike, weights: Floats | None = None) -> Floats:
    """Return Pearson's correlation, the covariance over the product of the standard deviations.

    >>> float(pearson([0, 1, 2, 3], [0, 2, 4, 6]).round(12))
    1.0
    """
    standardised = [_standardised(np.asarray(values, dtype=np.float64)) for values in (predictions, labels)]
    return _correlation(standardised[0], standardised[1], _weights(weights, standardised[0]))


def spearman(predictions: ArrayLike, labels: ArrayLike, weights: Floats | None = None) -> Floats:
    """Return Spearman's correlation: Pearson's of the ranks, equal values sharing their mean rank.

    >>> float(spearman([0, 1, 2, 3], [0, 1, 4, 9]).round(12))
    1.0
    """
    counts = _weights(weights, np.asarray(predictions))
    return _correlation(_ranks(predictions, counts), _ranks(labels, counts), counts)


def pearson_spearman(predictions: ArrayLike, labels: ArrayLike, weights: Floats | None = None) -> Floats:
    """Return the mean of Pearson's and Spearman's correlations.

    >>> float(pearson_spearman([0, 1, 2, 3], [0, 1, 4, 9]).round(4))
    0.9792
    """
    return (pearson(predictions, labels, weights) + spearman(predictions, labels, weights)) / 2


def mean(scores: ArrayLike, labels: ArrayLike, weights: Floats | None = None) -> Floats:
    """Return the mean of the examples' scores.

    >>> float(mean([0.5, 1.0], [0.0, 0.0]))
    0.75
    """
    values = np.asarray(scores, dtype=np.float64)
    counts = _weights(weights, values)
    return _ratio(counts @ values, counts.sum(-1))


def counted_f1(counts: ArrayLike, labels: ArrayLike, weights: Floats | None = None) -> Floats:
    """Return F1 from each example's counts (N, 3) of correct, predicted and true items.

    It is 2 c / (f + t) of the sums, the harmonic mean of the precision c / f and the recall c / t.

    >>> float(counted_f1([[1, 2, 1], [0, 0, 1]], [0, 0]))
    0.5
    """
    counted = np.asarray(counts, dtype=np.float64)
    sums = _weights(weights, counted) @ counted
    return _ratio(2 * sums[..., 0], sums[..., 1] + sums[..., 2])


class Metric(NamedTuple):
    """A metric and its description in the report."""

    compute: Callable[[ArrayLike, ArrayLike, Floats | None], Floats]
    title: str
    is_mean: bool = False  # over the examples, of 1 for a prediction that equals its label and 0 for any other
    is_share: bool = False  # from 0 to 1, so that it may be given in per cent
    classes: int | None = None  # that it is of; any number for None
    # of texts with references: each example's score (N,), or counts (N, K) that are added up; `compute` takes these
    of_texts: Callable[[Sequence[str], Sequence[Sequence[str]]], Floats] | None = None


METRICS = {
    "accuracy": Metric(accuracy, "accuracy", is_mean=True, is_share=True),
    "exact_match": Metric(accuracy, "exact match", is_mean=True, is_share=True),  # of texts, sign by sign
    "matthews": Metric(matthews, "Matthews"),
    "f1": Metric(f1, "F1", is_share=True, classes=2),
    "macro_f1": Metric(macro_f1, "macro F1", is_share=True),
    "pearson": Metric(pearson, "Pearson"),
    "spearman": Metric(spearman, "Spearman"),
    "pearson_spearman": Metric(pearson_spearman, "Pearson and Spearman"),
    "bleu": Metric(corpus_score("BLEU"), "BLEU", of_texts=corpus_counts("BLEU")),
    "chrf": Metric(corpus_score("CHRF"), "chrF", of_texts=corpus_counts("CHRF")),
    "rouge_l": Metric(mean, "ROUGE-L", of_texts=rouge_l),
    "meteor_stems": Metric(mean, "METEOR without synonyms", of_texts=meteor_stems),
    "squad_f1": Metric(mean, "SQuAD F1", is_share=True, of_texts=squad_f1),
    "squad_exact_match": Metric(mean, "SQuAD exact match", is_share=True, of_texts=squad_exact_match),
    # of words, by what is counted of each text
    "entity_f1": Metric(counted_f1, "entity F1", is_share=True),
    "word_accuracy": Metric(counted_f1, "word accuracy", is_share=True),
    "recall_at_1": Metric(mean, "recall at 1", is_share=True),  # of retrieval, which ranks
    "recall_at_10": Metric(mean, "recall at 10", is_share=True),
    "mrr_at_10": Metric(mean, "MRR at 10", is_share=True),
    # lm-eval's, by its names
    "acc": Metric(accuracy, "acc", is_mean=True, is_share=True),
    "acc_norm": Metric(accuracy, "acc_norm", is_mean=True, is_share=True),
    "mcc": Metric(matthews, "mcc"),
    "prompt_level_strict_acc": Metric(accuracy, "prompt_level_strict_acc", is_mean=True, is_share=True),
    "prompt_level_loose_acc": Metric(accuracy, "prompt_level_loose_acc", is_mean=True, is_share=True),
}


def _weights(weights: Floats | None, values: NDArray[np.generic]) -> Floats:
    return np.ones(len(values)) if weights is None else weights


def _ratio(numerator: Floats, denominator: Floats) -> Floats:
    """Divide; 0 for 0 / 0."""
    numerator, denominator = np.asarray(numerator), np.asarray(denominator)
    return np.divide(numerator, denominator, out=np.zeros(numerator.shape), where=denominator > 0)


def _counts(
    predictions: ArrayLike, labels: ArrayLike, weights: Floats | None, classes: ArrayLike | None = None
) -> tuple[Floats, Floats, Floats, Floats]:
    """Count by class (..., K) correct, predicted and labelled examples; and all examples (...)."""
    predictions, labels = np.asarray(predictions), np.asarray(labels)
    known = np.union1d(predictions, labels) if classes is None else np.asarray(classes)
    counts = _weights(weights, predictions)
    predicted = (predictions[:, None] == known).astype(np.float64)
    labelled = (labels[:, None] == known).astype(np.float64)
    return counts @ (predicted * labelled), counts @ predicted, counts @ labelled, counts.sum(-1)


def _standardised(values: Floats) -> Floats:
    """Shift and scale to mean 0 and variance 1, so that moments keep all digits; 0 if all values are equal."""
    centred = values - values.mean()
    return centred / centred.std() if np.ptp(values) > 0 else np.zeros_like(values)


def _correlation(x: Floats, y: Floats, weights: Floats) -> Floats:
    """Correlate standardised values (N,), or those of each resample (..., N)."""
    total = weights.sum(-1)

    def mean(values: Floats) -> Floats:
        total_products: Floats = weights @ values if values.ndim == 1 else np.einsum("...n,...n->...", weights, values)
        return total_products / total

    mean_x, mean_y = mean(x), mean(y)
    variance_x, variance_y = mean(x * x) - mean_x**2, mean(y * y) - mean_y**2
    varied = (variance_x > CONSTANT) & (variance_y > CONSTANT)
    return _ratio(mean(x * y) - mean_x * mean_y, np.sqrt(np.where(varied, variance_x * variance_y, 0)))


def _ranks(values: ArrayLike, weights: Floats) -> Floats:
    """Return each example's rank in a resample, from -1/2 to 1/2; equal values share their mean rank."""
    _, group = np.unique(np.asarray(values), return_inverse=True)
    order = np.argsort(group, kind="stable")
    starts = np.flatnonzero(np.diff(group[order], prepend=-1))
    sizes = np.add.reduceat(weights[..., order], starts, axis=-1)
    middles = np.cumsum(sizes, axis=-1) - sizes / 2
    return (middles / weights.sum(-1, keepdims=True) - 0.5)[..., group]
