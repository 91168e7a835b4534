"""Texts, or pairs of texts, with one number each: the head's only output against the column `label`."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from merganser.errors import InputError
from merganser.evaluation.columns import check_column, check_complete, type_of
from merganser.evaluation.examples import Results, compare_predictions
from merganser.evaluation.prepared import Prepared
from merganser.evaluation.texts import LABEL, PAIR, TEXT, TextSettings, check_texts, encode_rows, logits_of
from merganser.models import ChangesFeatures, Network, TakesTexts

METRICS = ("spearman", "pearson", "pearson_spearman")
NEEDS = (TakesTexts, ChangesFeatures)
TOKENS = 64
NUMBERS = ("int", "uint", "float")


Settings = TextSettings


def check_data(splits: Mapping[str, Any], settings: Settings, source: Path) -> None:
    """Refuse a data set without texts, or without numbers in `label`."""
    from datasets import ClassLabel

    check_texts(splits, source)
    for split, rows in splits.items():
        check_column(rows, LABEL, f"{source}: split {split}")
        feature = rows.features[LABEL]
        kind = "classes" if isinstance(feature, ClassLabel) else type_of(feature)
        if not kind.startswith(NUMBERS):
            raise InputError(f"{source}: split {split}: the label column holds {kind}, not numbers")


def columns(settings: Settings) -> Collection[str] | None:
    """Name the columns that are read."""
    return (TEXT, PAIR, LABEL)


def classes(features: Mapping[str, Any], settings: Settings) -> list[str]:
    """Return none: a number has no class."""
    return []


def outputs(classes: Sequence[str], settings: Settings) -> int:
    """Return one, the number."""
    return 1


def numbers(rows: Any) -> Tensor:
    """Return the number of each example, float64; raise InputError if one is missing or not finite."""
    check_complete(rows, [LABEL])
    labels = torch.tensor([float(label) for label in rows[LABEL]], dtype=torch.float64)
    if not labels.isfinite().all():
        number = int((~labels.isfinite()).nonzero()[0])
        raise InputError(f"example {number} has the label {labels[number]:g}; leave it out")
    return labels


def prepare(rows: Any, settings: Settings, network: Network) -> Iterator[Mapping[str, Tensor]]:
    """Yield each example's tokens and its `label`."""
    labels = numbers(rows)
    yield encode_rows(rows, network, settings.max_length) | {LABEL: labels}


def results(network: Network, prepared: Prepared, settings: Settings, metric: str, batch_size: int) -> Results:
    """Compare each example's output with its number."""
    predicted = logits_of(network, prepared, batch_size)[:, 0].double()
    return compare_predictions(metric, predicted.numpy(), prepared.array(LABEL).numpy())
