"""Metrics of texts that a model wrote, each against one reference or several, by the libraries they are known from.

A metric is the mean of what each example scores, (N,), or follows from the sum of what is counted of each, (N, K): then
a resample's is computed without reading the texts again. Legend: N examples, K counts.
"""

from collections.abc import Callable, Sequence
from functools import cache
from itertools import zip_longest
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from merganser.extras import naming_extras

Floats = NDArray[np.float64]
References = Sequence[Sequence[str]]  # of each example one or more


def corpus_counts(name: Literal["BLEU", "CHRF"]) -> Callable[[Sequence[str], References], Floats]:
    """Return what counts an example's n-grams, and which of them are in its references, for sacrebleu's metric.

    >>> corpus_counts("BLEU")(["a b c d e"], [["a b c d f"]]).tolist()  # lengths, n-grams that match, n-grams
    [[5.0, 5.0, 4.0, 3.0, 2.0, 1.0, 5.0, 4.0, 3.0, 2.0]]
    """

    def counts(found: Sequence[str], references: References) -> Floats:
        streams = list(zip_longest(*references))
        return np.array(_sacrebleu(name)._extract_corpus_statistics(found, streams), dtype=np.float64)

    return counts


def corpus_score(name: Literal["BLEU", "CHRF"]) -> Callable[[ArrayLike, ArrayLike, Floats | None], Floats]:
    """Return what makes sacrebleu's metric of examples' counts, as a fraction.

    >>> counts = corpus_counts("BLEU")(["a b c d e"], [["a b c d f"]])
    >>> float(corpus_score("BLEU")(counts, [0.0], None).round(4))
    0.6687
    """

    def score(counts: ArrayLike, labels: ArrayLike, weights: Floats | None = None) -> Floats:
        each = np.asarray(counts, dtype=np.float64)
        sums = (np.ones(len(each)) if weights is None else weights) @ each
        found = [_sacrebleu(name)._compute_score_from_stats(list(row)).score for row in sums.reshape(-1, each.shape[1])]
        return np.array(found).reshape(sums.shape[:-1]) / 100

    return score


@cache
def _sacrebleu(name: str) -> Any:
    with naming_extras():
        from sacrebleu import metrics
    return getattr(metrics, name)(force=True) if name == "BLEU" else getattr(metrics, name)()


def rouge_l(found: Sequence[str], references: References) -> Floats:
    """Return each example's ROUGE-L, the best over its references (rouge-score, without stemming).

    >>> rouge_l(["the cat sat"], [["the cat", "a dog"]]).round(4).tolist()
    [0.8]
    """
    with naming_extras():
        from rouge_score.rouge_scorer import RougeScorer
    scorer = RougeScorer(["rougeL"])
    pairs = zip(found, references, strict=True)
    return np.array([scorer.score_multi(given, text)["rougeL"].fmeasure for text, given in pairs], dtype=np.float64)


def meteor_stems(found: Sequence[str], references: References) -> Floats:
    """Return each example's METEOR, the best over its references, by words and their stems (nltk's), without synonyms.

    >>> meteor_stems(["the cats sat"], [["a dog", "the cat sat"]]).round(4).tolist()
    [0.9815]
    """
    with naming_extras():
        from nltk.translate.meteor_score import meteor_score
        from sacrebleu.tokenizers.tokenizer_13a import Tokenizer13a
    words = Tokenizer13a()
    pairs = zip(found, references, strict=True)
    values = [
        meteor_score([words(each).split() for each in given], words(text).split(), wordnet=_NoSynonyms())
        for text, given in pairs
    ]
    return np.array(values, dtype=np.float64)


class _NoSynonyms:
    """Stands in for WordNet, which no package of the index has: nltk downloads it."""

    def synsets(self, word: str) -> list[Any]:
        """Return none."""
        return []
