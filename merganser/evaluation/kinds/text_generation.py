"""Texts that a model answers in words: what it writes, or the likeliest of given answers, against the right one.

The prompt is a template over the data's columns; of several, each example is asked by every one, and scores their mean.
The right answer is the text in the column `answer`, or that of `answers` which the column `label` numbers. Numbers in
`answer` are written with one decimal, as STS-B's are for T5. Texts that are set against references may have several.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from string import Formatter
from typing import Annotated, Any, Literal

import numpy as np
import torch
from pydantic import Field, field_validator, model_validator
from torch import Tensor

from merganser.errors import InputError
from merganser.evaluation import KindSettings, Names, Text
from merganser.evaluation.columns import (
    NUMBERED,
    UNLABELLED,
    check_column,
    check_complete,
    check_order,
    class_numbers,
    type_of,
)
from merganser.evaluation.data_sets import opens_files
from merganser.evaluation.examples import Results, compare_predictions, compare_texts, mean_of_seeds
from merganser.evaluation.metrics import METRICS as ALL_METRICS
from merganser.evaluation.prepared import Prepared
from merganser.evaluation.texts import encode_texts, pack, run_by_length, unpack
from merganser.models import Generates, Network, TakesTexts, defined

METRICS = (
    *("exact_match", "accuracy", "matthews", "f1", "macro_f1", "spearman", "pearson", "pearson_spearman"),
    *("bleu", "chrf", "rouge_l", "meteor_stems"),
)
NEEDS = (TakesTexts, Generates)
TOKENS = 128
NUMBERS = ("spearman", "pearson", "pearson_spearman")
ROUGE_WORD = re.compile("[a-z0-9]")  # what rouge-score takes for a part of a word
MEANS = ("rouge_l", "meteor_stems")  # of examples' scores
WRITTEN = ("bleu", "chrf", *MEANS)  # against references
TEXTS = ("exact_match", "accuracy", *WRITTEN)
BETWEEN = "\x1e"  # a right answer and the next, where an example has several
UNREADABLE = 0.0  # what an answer that is not a number counts as
INPUTS = ("input_ids", "attention_mask")


class Settings(KindSettings):
    """The prompt and how its answer is found."""

    prompt: Text | Annotated[list[Text], Field(min_length=2)]
    answers: Annotated[Names, Field(min_length=2)] | None = None
    scoring: Literal["generate", "rank"] = "generate"
    max_new_tokens: Annotated[int, Field(ge=1, le=4096)] = 10
    max_length: Annotated[int, Field(ge=1, le=2**17)] = 512  # tokens of the prompt

    @field_validator("prompt")
    @classmethod
    def _plain_columns(cls, prompt: str | list[str]) -> str | list[str]:
        for template in [prompt] if isinstance(prompt, str) else prompt:
            try:
                parts = [(name, spec, how) for _, name, spec, how in Formatter().parse(template) if name is not None]
            except ValueError as error:
                raise ValueError(f"not a template ({error}); write a brace that is not a column twice") from None
            if not parts or any(not name.isidentifier() or spec or how for name, spec, how in parts):
                raise ValueError(
                    "must name columns of the data in braces, such as {sentence}, and nothing else in them"
                )
        return prompt

    @model_validator(mode="after")
    def _ranked_answers(self) -> "Settings":
        if self.scoring == "rank" and self.answers is None:
            raise ValueError("scoring: rank needs `answers`, the texts to choose from")
        return self

    @property
    def prompts(self) -> list[str]:
        """Return the templates."""
        return [self.prompt] if isinstance(self.prompt, str) else self.prompt


def columns_of(prompt: str) -> list[str]:
    """Name the columns in a template.

    >>> columns_of("{premise} Does it follow that {hypothesis}?")
    ['premise', 'hypothesis']
    """
    return [name for _, name, _, _ in Formatter().parse(prompt) if name is not None]


def check_data(splits: Mapping[str, Any], settings: Settings, source: Path) -> None:
    """Refuse a data set without the prompt's columns or the right answers."""
    for split, rows in splits.items():
        where = f"{source}: split {split}"
        for name in columns(settings):
            check_column(rows, name, where)
        if media := [name for name in columns(settings) if opens_files(rows.features[name])]:
            raise InputError(f"{where}: the column {media[0]!r} does not hold texts")
        for name in columns(settings):
            _check_type(name, rows.features[name], where)
        if settings.answers is not None:
            _check_labels(rows, settings.answers, where)


def _check_type(name: str, feature: Any, where: str) -> None:
    """Refuse a column that would be written as a class number or in brackets; several answers are a list."""
    from datasets import ClassLabel, Value

    several = name == "answer" and hasattr(feature, "feature")
    if isinstance(feature, ClassLabel) and name == "answer":
        advice = "name it `label` by data.columns, and give data.answers the classes' names"
        raise InputError(f"{where}: the column 'answer' holds classes; {advice}")
    if name != "label" and not isinstance(feature.feature if several else feature, Value):
        held = "the numbers of classes" if isinstance(feature, ClassLabel) else f"{feature}"
        raise InputError(f"{where}: the column {name!r} holds {held}; save it as texts")


def _check_labels(rows: Any, answers: Sequence[str], where: str) -> None:
    """Refuse labels that do not number the answers, or whose names have another order."""
    kind = type_of(rows.features["label"])
    known = f"labels are the numbers 0 to {len(answers) - 1} of data.answers"
    if not kind.startswith(NUMBERED):
        raise InputError(f"{where}: the labels are {kind}; {known}")
    check_order(getattr(rows.features["label"], "names", ()), answers, where, "data.answers")
    for label in rows.data.column("label").unique().to_pylist():
        if label not in UNLABELLED and not 0 <= label < len(answers):
            raise InputError(f"{where} has the label {label!r}; {known}")


def check_metric(splits: Mapping[str, Any], settings: Settings, metric: str, source: Path) -> None:
    """Refuse a metric that cannot be computed from these prompts and answers."""
    if len(settings.prompts) > 1 and not (ALL_METRICS[metric].is_mean or metric in MEANS):
        raise InputError(f"data.metric: {metric} is no mean over examples, which several prompts need; give one prompt")
    if settings.answers is not None:
        if metric in (*WRITTEN, *NUMBERS):
            raise InputError(f"data.metric: {metric} needs the column answer instead of `answers`")
        return
    if metric not in (*TEXTS, *NUMBERS):
        raise InputError(f"data.metric: {metric} needs `answers`, the texts that the labels stand for")
    for split, rows in splits.items():
        _check_answers(rows, metric, f"{source}: split {split}")


def _check_answers(rows: Any, metric: str, where: str) -> None:
    """Refuse right answers that the metric cannot compare."""
    feature = rows.features["answer"]
    kind = str(getattr(feature, "feature", feature).dtype)
    if kind.startswith("float") and metric not in NUMBERS:
        raise InputError(f"{where}: the column 'answer' holds {kind}, and {metric} compares texts; save it as texts")
    for answer in rows["answer"]:
        several = isinstance(answer, list) and len(answer) > 1
        if several and metric not in WRITTEN:
            has = f"that of {answer[0]!r} is one of several"
            raise InputError(f"{where}: data.metric: {metric} needs one right answer an example; {has}")
        if metric in NUMBERS and answer is not None:
            _number(_written(answer), strict=True)
        text = "" if answer is None else _written(answer).strip()
        if metric == "rouge_l" and text and not ROUGE_WORD.search(text.lower()):
            has = f"and {text!r} has none: choose chrf, or leave the example out"
            raise InputError(f"{where}: data.metric: rouge_l counts words of ASCII letters and digits, {has}")


def columns(settings: Settings) -> Collection[str]:
    """Name the columns that are read: those of the prompt, and that of the right answer."""
    asked = dict.fromkeys(name for prompt in settings.prompts for name in columns_of(prompt))
    return (*asked, "answer" if settings.answers is None else "label")


def classes(features: Mapping[str, Any], settings: Settings) -> list[str]:
    """Name the answers by label, if they are given."""
    return list(settings.answers or [])


def prepare(rows: Any, settings: Settings, network: Network) -> Iterator[Mapping[str, Tensor]]:
    """Yield each prompt's tokens, and its `label` or its right answer as bytes."""
    assert isinstance(network, TakesTexts)
    assert isinstance(network, Generates)
    prompts = settings.prompts
    check_complete(rows, [name for name in columns(settings) if name != "label"])
    encoded = encode_texts(network, [prompt.format(**row) for row in rows for prompt in prompts], settings.max_length)
    tokens = {name: encoded[name] for name in INPUTS}
    _check_room(network, encoded["input_ids"].shape[1], settings)
    if len(prompts) > 1:
        tokens = {name: values.unflatten(0, (-1, len(prompts))) for name, values in tokens.items()}
    if settings.answers is not None:
        if settings.scoring == "rank":
            _check_apart(settings.answers, network.tokenizer)
        labels = class_numbers(rows["label"], range(len(settings.answers)), remedy="evaluate another split")
        yield tokens | {"label": torch.tensor(labels)}
    else:
        yield tokens | {"answer": pack([_written(answer) for answer in rows["answer"]])}


def _check_room(network: Generates, tokens: int, settings: Settings) -> None:
    """Refuse prompts of so many tokens that the network has no positions left for an answer."""
    room = network.room(tokens)
    if settings.scoring == "generate" and room is not None and room < settings.max_new_tokens:
        has = f"an answer has up to {settings.max_new_tokens} tokens, and the network positions for {max(room, 0)}"
        raise InputError(f"{has} after a prompt of {tokens}; set a smaller data.max_new_tokens or data.max_length")


def _check_apart(answers: Sequence[str], tokenizer: Any) -> None:
    """Refuse answers that are the same tokens: they are equally likely."""
    first: dict[tuple[int, ...], str] = {}
    for answer in answers:
        tokens = tuple(tokenizer(answer, add_special_tokens=False).input_ids)
        if (other := first.setdefault(tokens, answer)) != answer or not tokens:
            reason = f"{other!r} and {answer!r} are the same tokens" if tokens else f"{answer!r} has no tokens"
            raise InputError(f"data.answers: {reason} for the model's tokenizer, so it cannot rank them; change them")


def _written(answer: Any) -> str:
    if isinstance(answer, list):
        return BETWEEN.join(map(str, answer))
    return f"{answer:.1f}" if isinstance(answer, float) else str(answer)


def results(network: Network, prepared: Prepared, settings: Settings, metric: str, batch_size: int) -> Results:
    """Compare each answer with the right one: texts without surrounding spaces, labels, or numbers.

    With several prompts, an example's score is the mean over them.
    """
    if len(settings.prompts) == 1:
        return _results(network, prepared, None, settings, metric, batch_size)
    prompts = range(len(settings.prompts))
    return mean_of_seeds([_results(network, prepared, number, settings, metric, batch_size) for number in prompts])


def _results(
    network: Network, prepared: Prepared, prompt: int | None, settings: Settings, metric: str, batch_size: int
) -> Results:
    """Compare the answers to one prompt of each example; `prompt`: its number, if there are several."""
    assert isinstance(network, Generates)
    if settings.answers is None:
        right = unpack(prepared.array("answer"))
        labels = [_number(text, strict=True) for text in right] if metric in NUMBERS else []
        words = settings.max_new_tokens
        texts = run_by_length(lambda batch: network.generate(batch, words), prepared, INPUTS, batch_size, prompt)
        if metric in NUMBERS:
            return compare_predictions(metric, list(map(_number, texts)), labels)
        if metric in WRITTEN:
            return compare_texts(metric, [text.strip() for text in texts], [text.split(BETWEEN) for text in right])
        return compare_predictions(metric, [text.strip() for text in texts], [text.strip() for text in right])
    answers = settings.answers
    choices = run_by_length(
        lambda batch: _chosen(network, batch, settings, answers), prepared, INPUTS, batch_size, prompt
    )
    return compare_predictions(metric, choices, prepared.array("label").numpy())


def _chosen(network: Generates, batch: Mapping[str, Tensor], settings: Settings, answers: Sequence[str]) -> Any:
    """Return the number of the answer that each prompt got (B,), -1 for any other answer."""
    if settings.scoring == "rank":
        return defined(network.rank(batch, answers)).argmax(dim=1).cpu().numpy()
    number = {answer.strip(): i for i, answer in enumerate(answers)}
    written = network.generate(batch, settings.max_new_tokens)
    return np.array([number.get(text.strip(), -1) for text in written], dtype=np.int64)


def _number(text: str, strict: bool = False) -> float:
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if np.isfinite(value):
        return value
    if strict:
        raise InputError(f"data.metric: {text!r} in the column answer is not a number; choose exact_match")
    return UNREADABLE
