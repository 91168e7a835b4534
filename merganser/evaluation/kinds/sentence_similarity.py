"""Pairs of texts with one number each: the cosine of their embeddings against the column `label`."""

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from merganser.evaluation.examples import Results, compare_predictions
from merganser.evaluation.kinds.regression import check_data as check_numbers
from merganser.evaluation.kinds.regression import classes, numbers
from merganser.evaluation.prepared import Prepared
from merganser.evaluation.sentence_pairs import PREFIX, PairSettings, check_pairs, embed, encode_pairs
from merganser.evaluation.texts import LABEL, PAIR, TEXT
from merganser.models import EncodesSentences, Network, TakesTexts

METRICS = ("spearman", "pearson")
NEEDS = (TakesTexts, EncodesSentences)
PIPELINE = "sentence-similarity"  # of the families that score it
TOKENS = 64

Settings = PairSettings

__all__ = ["METRICS", "NEEDS", "PIPELINE", "TOKENS", "Settings", "classes"]


def check_data(splits: Mapping[str, Any], settings: Settings, source: Path) -> None:
    """Refuse a data set without pairs of texts, or without numbers in `label`."""
    check_pairs(splits, source)
    check_numbers(splits, settings, source)


def columns(settings: Settings) -> Collection[str] | None:
    """Name the columns that are read."""
    return (TEXT, PAIR, LABEL)


def prepare(rows: Any, settings: Settings, network: Network) -> Iterator[Mapping[str, Tensor]]:
    """Yield the tokens of each example's texts and its `label`."""
    labels = numbers(rows)
    yield encode_pairs(rows, network, settings.max_length) | {LABEL: labels}


def results(network: Network, prepared: Prepared, settings: Settings, metric: str, batch_size: int) -> Results:
    """Compare the cosine of each example's embeddings with its number."""
    one, other = (embed(network, prepared, batch_size, prefix) for prefix in ("", PREFIX))
    return compare_predictions(metric, (one * other).sum(dim=1).numpy(), prepared.array(LABEL).numpy())
