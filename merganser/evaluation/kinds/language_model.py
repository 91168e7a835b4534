"""Tasks of lm-eval, by templates: multiple choice by likelihood, generated answers, or the likelihood of one text.

`task` is what a task file of lm-eval says, without its data: they come from `data.source`. It stands in params.yaml, or
in a file of the comparison's folder, named with its SHA-256 so that a change of it is a change of params.yaml, or it is
one of the installed lm-eval's own, named with its version for the same reason.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import Field, field_validator
from torch import Tensor

from merganser.errors import InputError
from merganser.evaluation.examples import Results
from merganser.evaluation.harness import check_metric, check_task, installed_task, open_task, samples_of
from merganser.evaluation.packed_texts import pack, unpack
from merganser.evaluation.prepared import Prepared
from merganser.evaluation.settings import KindSettings, Text
from merganser.limits import check_plain, parse_yaml, read_small
from merganser.models import Generates, Network, TakesTexts

METRICS = ("acc", "acc_norm", "exact_match", "mcc", "f1", "prompt_level_strict_acc", "prompt_level_loose_acc")
NEEDS = (TakesTexts, Generates)
PAIRS = ("mcc", "f1")  # lm-eval keeps a label and a prediction of each document, not a score


class TaskFile(KindSettings):
    """A task of lm-eval in a YAML file beside params.yaml."""

    file: Text
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


class InstalledTask(KindSettings):
    """A task of the installed lm-eval, by its file in lm_eval/tasks, and the version that its metadata says."""

    installed: Annotated[str, Field(pattern=r"^\w[\w.-]*(/\w[\w.-]*)*\.yaml$")]
    version: Text


class Settings(KindSettings):
    """What lm-eval asks, and how."""

    task: TaskFile | InstalledTask | dict[str, Any]

    @field_validator("task")
    @classmethod
    def _without_code(cls, task: Any) -> Any:
        if isinstance(task, dict):
            check_task(task)
        return task


def task_of(settings: Settings) -> dict[str, Any]:
    """Return the task, read from its file if it has one; raise InputError where it is not the one declared."""
    if isinstance(settings.task, dict):
        return settings.task
    if isinstance(settings.task, InstalledTask):
        return installed_task(settings.task.installed, settings.task.version)
    check_plain(settings.task.file, Path("params.yaml"))
    path = Path(settings.task.file)
    try:
        content = read_small(path)
    except OSError as error:
        raise InputError(f"data.task.file: {path} cannot be read ({error.strerror})") from error
    found = hashlib.sha256(content).hexdigest()
    if found != settings.task.sha256:
        raise InputError(f"data.task.sha256: {path} has {found}; write this there once the file is as it should be")
    try:
        task = parse_yaml(content.decode(), str(path))
        check_task(task)
    except (ValueError, TypeError, AttributeError) as error:
        raise InputError(f"{path}: {error}") from error
    return dict(task)


def check_data(splits: Mapping[str, Any], settings: Settings, source: Path) -> None:
    """Refuse a data set whose documents are no plain values, or that the templates do not fit."""
    for split, rows in splits.items():
        try:
            documents = _documents(rows, 1)
        except TypeError as error:
            raise InputError(f"{source}: split {split} holds what is no text, number or list ({error})") from error
        if documents:  # a template can only be tried on one
            open_task(task_of(settings), "exact_match", [json.loads(document) for document in documents])


def classes(features: Mapping[str, Any], settings: Settings) -> list[str]:
    """Name the choices, where all documents have the same ones."""
    choices = task_of(settings).get("doc_to_choice")
    return [str(choice) for choice in choices] if isinstance(choices, list) else []


def outputs(classes: Sequence[str], settings: Settings) -> int | None:
    """Return None: a language model answers in words."""
    return None


def prepare(rows: Any, settings: Settings, network: Network) -> Iterator[Mapping[str, Tensor]]:
    """Give each document as JSON, in bytes: lm-eval itself makes questions of it, and tokens."""
    _check(network)
    yield {"document": pack(_documents(rows, len(rows)))}


def results(network: Network, prepared: Prepared, settings: Settings, metric: str, batch_size: int) -> Results:
    """Return lm-eval's score of each document, or its prediction and label where the metric compares these."""
    _check(network)
    task = task_of(settings)
    check_metric(task, metric)
    documents = [json.loads(text) for text in unpack(prepared.array("document"))]
    found = [sample[metric] for sample in samples_of(open_task(task, metric, documents), network, batch_size)]
    if metric in PAIRS:
        labels, predictions = (np.array([int(pair[i]) for pair in found], dtype=np.int64) for i in (0, 1))
        return Results(prediction=predictions, label=labels)
    return Results(score=np.array(found, dtype=np.float64))


def _documents(rows: Any, count: int) -> list[str]:
    return [json.dumps(row) for row in rows.select(range(min(count, len(rows))))]


def _check(network: Network) -> None:
    if not isinstance(network, TakesTexts) or not isinstance(network, Generates):
        raise InputError("language_model: the model's family writes no text; choose another kind for the task")
