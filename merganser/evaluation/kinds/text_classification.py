"""Texts, or pairs of texts, of one class each: the class with the highest output of the head against the label."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor

from merganser.errors import InputError
from merganser.evaluation import Names
from merganser.evaluation.columns import WORDS, check_labels, class_numbers, class_outputs, label_names, type_of
from merganser.evaluation.examples import Results, compare_predictions
from merganser.evaluation.prepared import Prepared
from merganser.evaluation.texts import LABEL, PAIR, TEXT, TextSettings, check_texts, encode_rows, logits_of
from merganser.models import ChangesFeatures, Network, TakesTexts

METRICS = ("accuracy", "matthews", "f1", "macro_f1")
NEEDS = (TakesTexts, ChangesFeatures)
TOKENS = 64


class Settings(TextSettings):
    """The classes' names if not the data's own, and the numbers of the head's outputs that stand for no class.

    The other outputs, in their order, are the classes: with `masked: [1]` a head of three outputs has two. `labels`:
    where the label column holds words, those of the classes in their order; they are the classes' names too, unless
    `classes` has others. `unlabelled: drop` leaves out rows whose label is null or -1.
    """

    classes: Annotated[Names, Field(min_length=2)] | None = None
    labels: Annotated[Names, Field(min_length=2)] | None = None
    masked: list[Annotated[int, Field(ge=0)]] = Field(default_factory=list)
    unlabelled: Literal["refuse", "drop"] = "refuse"

    @model_validator(mode="after")
    def _names_of_labels(self) -> Self:
        if self.labels and self.classes and len(self.labels) != len(self.classes):
            raise ValueError(f"labels has {len(self.labels)} words, classes {len(self.classes)} names")
        return self

    @property
    def names(self) -> list[str] | None:
        """Return the declared class names; None if the data have them."""
        return self.classes or self.labels


def check_data(splits: Mapping[str, Any], settings: Settings, source: Path) -> None:
    """Refuse a data set without texts, or without a `label` whose classes have names."""
    check_texts(splits, source)
    for split, rows in splits.items():
        feature = rows.features.get(LABEL)
        if settings.labels is None and type_of(feature) in WORDS:
            remedy = "data.labels lists them in the classes' order"
            raise InputError(f"{source}: split {split}: the label column holds words; {remedy}")
    may_lack = settings.unlabelled == "drop"
    check_labels(splits, settings.names, source, settings.labels, some_unlabelled=may_lack)


def columns(settings: Settings) -> Collection[str] | None:
    """Name the columns that are read."""
    return (TEXT, PAIR, LABEL)


def classes(features: Mapping[str, Any], settings: Settings) -> list[str]:
    """Name the classes by their labels."""
    return label_names(features, settings.names)


def outputs(classes: Sequence[str], settings: Settings) -> int:
    """Count the classes and the outputs that stand for no class."""
    return len(classes) + len(set(settings.masked))


def prepare(rows: Any, settings: Settings, network: Network) -> Iterator[Mapping[str, Tensor]]:
    """Yield each example's tokens and its `label`."""
    known, remedy = range(len(classes(rows.features, settings))), "`unlabelled: drop` leaves out those that have none"
    label = torch.tensor(class_numbers(_numbers(rows[LABEL], settings.labels), known, remedy=remedy))
    yield encode_rows(rows, network, settings.max_length) | {LABEL: label}


def class_logits(
    network: Network, prepared: Prepared, settings: Settings, parameters: Mapping[str, Tensor], rows: Sequence[int]
) -> Tensor:
    """Return the class logits of some texts with these parameters instead of the loaded ones."""
    assert isinstance(network, TakesTexts)
    inputs = prepared.rows(network.tokenizer.model_input_names, rows)
    return class_outputs(network.forward(parameters, inputs), settings.masked)


def results(network: Network, prepared: Prepared, settings: Settings, metric: str, batch_size: int) -> Results:
    """Compare the likeliest class of each example with its label."""
    predictions = class_outputs(logits_of(network, prepared, batch_size), settings.masked).argmax(dim=1)
    return compare_predictions(metric, predictions.numpy(), prepared.array(LABEL).numpy())


def _numbers(labels: Sequence[Any], words: Sequence[str] | None) -> list[Any]:
    """Turn words into numbers; a word that stands for no class stays as it is."""
    number = {word: place for place, word in enumerate(words or ())}
    return [number.get(label, label) for label in labels]
