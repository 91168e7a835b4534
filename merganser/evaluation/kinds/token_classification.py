"""Texts with one class per word, such as named entities: the highest output at a word's first token.

Shape legend: N texts, W words of the longest text, L tokens.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any
from zlib import crc32

import numpy as np
import torch
from pydantic import Field
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from merganser.errors import InputError
from merganser.evaluation import KindSettings, Names
from merganser.evaluation.columns import (
    RENAMED,
    WORDS,
    check_column,
    check_complete,
    check_order,
    class_numbers,
    type_of,
)
from merganser.evaluation.examples import Results
from merganser.evaluation.prepared import Prepared
from merganser.evaluation.texts import LABEL, run_by_length
from merganser.models import Network, ScoresWords, TakesTexts

METRICS = ("entity_f1", "word_accuracy")
NEEDS = (TakesTexts, ScoresWords)
PIPELINE = "token-classification"  # of the families that score it
TOKENS = 64
COLUMN, PLACES = "tokens", "places"
NONE = -1  # where there is no word, no token of a word, or no class
TAG = re.compile(r"O|[BIMELSU]-.+")  # outside, or begin, inside (also M), end (also L) and single (also U)


class Settings(KindSettings):
    """The classes' names if not the data's own, in the order of the labels, and the most tokens a text may have.

    `labels`: where the labels are words, those of the classes in their order. A word beyond the last token counts as
    outside all entities, and as wrong.
    """

    classes: Annotated[Names, Field(min_length=2)] | None = None
    labels: Annotated[Names, Field(min_length=2)] | None = None
    max_length: Annotated[int, Field(ge=1, le=2**17)] = 128


def check_data(splits: Mapping[str, Any], settings: Settings, source: Path) -> None:
    """Refuse a data set without lists of words in `tokens`, or without a list of their classes in `label`."""
    names: dict[str, list[str]] = {}
    for split, rows in splits.items():
        for column in (COLUMN, LABEL):
            check_column(rows, column, f"{source}: split {split}", RENAMED)
            if getattr(rows.features[column], "feature", None) is None:
                raise InputError(f"{source}: split {split}: the column {column!r} is no list, one value a word")
        if (held := type_of(rows.features[COLUMN].feature)) not in WORDS:
            raise InputError(f"{source}: split {split}: the column {COLUMN!r} holds lists of {held}, not of words")
        _check_labels(rows.features[LABEL].feature, settings, f"{source}: split {split}")
        names[split] = classes(rows.features, settings)
    if len(set(map(tuple, names.values()))) > 1:
        raise InputError(f"{source}: the splits number classes differently; cast their labels to one ClassLabel")


def _check_labels(feature: Any, settings: Settings, where: str) -> None:
    """Refuse labels without names, or with names that differ from the declared ones."""
    own, held = getattr(feature, "names", None), type_of(feature)
    if held in WORDS:
        if settings.labels is None:
            raise InputError(f"{where}: the labels are words; data.labels lists them in the classes' order")
    elif settings.labels is not None:
        raise InputError(f"{where}: the labels are {held}, not words; leave data.labels out")
    elif own is not None:
        if settings.classes and len(settings.classes) != len(own):
            raise InputError(f"{where} has {len(own)} classes, data.classes names {len(settings.classes)}")
        check_order(own, settings.classes or (), where, "data.classes")
    elif settings.classes is None or not held.startswith(("int", "uint")):
        raise InputError(f"{where}: the labels have no names; cast them to ClassLabel, or name them by data.classes")
    if settings.labels and settings.classes and len(settings.labels) != len(settings.classes):
        raise InputError(f"data.labels has {len(settings.labels)} words, data.classes {len(settings.classes)} names")


def check_metric(splits: Mapping[str, Any], settings: Settings, metric: str, source: Path) -> None:
    """Refuse F1 of entities if the class names are not entity tags."""
    for split, rows in splits.items():
        other = [name for name in classes(rows.features, settings) if not TAG.fullmatch(name)]
        if metric == "entity_f1" and other:
            reason = f"data.metric: entity_f1 reads tags such as O, B-PER and I-PER, and {other[0]!r} is none"
            raise InputError(f"{reason} (split {split} of {source}); choose word_accuracy")


def columns(settings: Settings) -> Collection[str] | None:
    """Name the columns that are read."""
    return (COLUMN, LABEL)


def classes(features: Mapping[str, Any], settings: Settings) -> list[str]:
    """Name the classes by their labels."""
    return list(settings.classes or settings.labels or features[LABEL].feature.names)


def outputs(classes: Sequence[str], settings: Settings) -> int:
    """Count the classes."""
    return len(classes)


def prepare(rows: Any, settings: Settings, network: Network) -> Iterator[Mapping[str, Tensor]]:
    """Yield each text's tokens, its words' `label` (N, W) and the `places` of their first tokens."""
    assert isinstance(network, ScoresWords)
    check_complete(rows, [COLUMN, LABEL])
    known, words = range(len(classes(rows.features, settings))), list(rows[COLUMN])
    number = {word: place for place, word in enumerate(settings.labels or ())}
    labels = [[number.get(label, label) for label in each] for each in rows[LABEL]]
    for example, (text, given) in enumerate(zip(words, labels, strict=True)):
        if len(text) != len(given):
            raise InputError(f"example {example} has {len(text)} words and {len(given)} labels; leave it out")
    numbered = [torch.tensor(class_numbers(each, known), dtype=torch.int32) for each in labels]
    inputs, places = network.encode_words(words, settings.max_length)
    label = pad_sequence(numbered, batch_first=True, padding_value=NONE)
    yield {name: values.to(torch.int32) for name, values in inputs.items()} | {LABEL: label, PLACES: places}


def results(network: Network, prepared: Prepared, settings: Settings, metric: str, batch_size: int) -> Results:
    """Count each text's correct, predicted and true items: entities or, for accuracy, words."""
    assert isinstance(network, TakesTexts)
    names: Sequence[str] = network.tokenizer.model_input_names
    tokens = run_by_length(lambda batch: network.logits(batch).argmax(dim=2).cpu(), prepared, names, batch_size)
    counts, labels = [], []
    for predicted, places, label in zip(tokens, prepared.array(PLACES), prepared.array(LABEL), strict=True):
        given = label[label != NONE].tolist()
        answers = [int(predicted[place]) if place != NONE else NONE for place in places[: len(given)].tolist()]
        counts.append(_counts(answers, given, prepared.classes if metric == "entity_f1" else None))
        labels.append(crc32(repr(given).encode()))
    return Results(None, np.array(counts, dtype=np.float64), np.array(labels, dtype=np.float64))


def _counts(answers: Sequence[int], labels: Sequence[int], tags: Sequence[str] | None) -> tuple[int, int, int]:
    """Count correct, predicted and true entities by their tags; words if there are no tags."""
    if tags is None:
        return sum(answer == label for answer, label in zip(answers, labels, strict=True)), len(labels), len(labels)
    marked, there = (entities([tags[n] if n != NONE else "O" for n in numbers]) for numbers in (answers, labels))
    return len(marked & there), len(marked), len(there)


def entities(tags: Sequence[str]) -> set[tuple[str, int, int]]:
    """Return the tagged entities, each with its type, its first word, and the word after its last.

    As CoNLL's `conlleval` reads them: an entity begins at B and S, after the end of another, and where the type
    changes.

    >>> sorted(entities(["B-PER", "I-PER", "O", "I-LOC", "B-LOC"]))
    [('LOC', 3, 4), ('LOC', 4, 5), ('PER', 0, 2)]
    """
    spans, first, before, kind = set[tuple[str, int, int]](), 0, "O", ""
    for word, tag in enumerate((*tags, "O")):
        mark, _, name = tag.partition("-")
        begins = mark != "O" and (mark in "BSU" or before in "OELSU" or name != kind)
        if before != "O" and (begins or mark == "O"):
            spans.add((kind, first, word))
        first, before, kind = word if begins else first, mark, name
    return spans
