"""Tasks of lm-eval, by templates: multiple choice by likelihood, generated answers, or the likelihood of one text.

`task` is what a task file of lm-eval says, without its data: they come from `data.source`. It stands in params.yaml, or
in a file of the comparison's folder, named with its SHA-256 so that a change of it is a change of params.yaml, or it is
one of the installed lm-eval's own, named with its version for the same reason. A group of data sets has a task each;
the metric is of all their questions together, as of lm-eval's own groups, which count by size.
"""

import hashlib
import json
from collections.abc import Collection, Iterator, Mapping
from itertools import compress
from pathlib import Path
from typing import Annotated, Any, Self

import numpy as np
from pydantic import AfterValidator, Field, model_validator
from torch import Tensor

from merganser.errors import InputError
from merganser.evaluation import KindSettings, Text
from merganser.evaluation.data_sets import DOCUMENT, MEMBER, to_json
from merganser.evaluation.examples import Results
from merganser.evaluation.harness import (
    DEFAULT_TYPE,
    check_given,
    check_task,
    installed_task,
    make_lm_eval_task,
    network_as_lm,
    samples_of,
    server_as_lm,
)
from merganser.evaluation.prepared import Prepared
from merganser.evaluation.serving import ModelServer
from merganser.evaluation.texts import pack, unpack
from merganser.limits import check_plain, parse_yaml, read_small
from merganser.models import Generates, Network, TakesTexts

METRICS = ("acc", "acc_norm", "exact_match", "mcc", "f1", "prompt_level_strict_acc", "prompt_level_loose_acc")
NEEDS = (TakesTexts, Generates)
TOKENS = 256
PRELOAD = ("lm_eval.evaluator", "lm_eval.models.huggingface")
SHOWN_FILE = "shown.json"  # beside what was prepared
PAIRS = ("mcc", "f1")  # lm-eval keeps a label and a prediction of each document, not a score


class TaskFile(KindSettings):
    """A task of lm-eval in a YAML file next to params.yaml."""

    file: Text
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


class InstalledTask(KindSettings):
    """A task of the installed lm-eval, by its file in lm_eval/tasks, and the version that its metadata says."""

    installed: Annotated[str, Field(pattern=r"^\w[\w.-]*(/\w[\w.-]*)*\.yaml$")]
    version: Text


def _without_code(task: Any) -> Any:
    if isinstance(task, dict):
        if named := {"installed", "file"} & task.keys():
            raise ValueError(f"{', '.join(named)}: a task has installed and version, or file and sha256, as texts")
        check_task(task)
    return task


Task = Annotated[TaskFile | InstalledTask | dict[str, Any], AfterValidator(_without_code)]


class Settings(KindSettings):
    """What lm-eval asks, and how: one task, or one for each data set of the source's group.

    `num_fewshot`: how many examples of `fewshot_split`, another split of the data, are shown before each question.
    `chat_template`: questions are put into the model's template for chats, examples before them as earlier turns.
    `system`: a text that stands before all.
    """

    task: Task | None = None
    group: dict[Text, Task] = Field(default_factory=dict)
    num_fewshot: Annotated[int, Field(ge=1)] | None = None
    fewshot_split: Text | None = None
    chat_template: bool = False
    system: Text | None = None

    @model_validator(mode="after")
    def _says_which(self) -> Self:
        if (self.task is None) == (not self.group):
            raise ValueError("needs `task`, or `group`, a task for each data set of a group")
        if (self.num_fewshot is None) != (self.fewshot_split is None):
            raise ValueError("needs both of num_fewshot and fewshot_split, which the examples are of, or none")
        return self


def tasks_of(settings: Settings) -> dict[str, dict[str, Any]]:
    """Return each data set's task, or one under the name '', read from its file if it has one.

    Raises InputError if a task is not the declared one.
    """
    named = {"": settings.task} if settings.task is not None else settings.group
    return {member: _read(task, settings.fewshot_split is not None) for member, task in named.items()}


def _read(task: Task, shown: bool) -> dict[str, Any]:
    if isinstance(task, dict):
        return task
    if isinstance(task, InstalledTask):
        return installed_task(task.installed, task.version, shown)
    check_plain(task.file, Path("params.yaml"))
    path = Path(task.file)
    try:
        content = read_small(path)
    except OSError as error:
        raise InputError(f"data.task.file: {path} cannot be read ({error.strerror})") from error
    digest = hashlib.sha256(content).hexdigest()
    if digest != task.sha256:
        raise InputError(f"data.task.sha256: {path} has {digest}; write this there once the file is as it should be")
    try:
        own = parse_yaml(content.decode(), str(path))
        check_task(own)
    except (ValueError, TypeError, AttributeError) as error:
        raise InputError(f"{path}: {error}") from error
    return dict(own)


def check_data(splits: Mapping[str, Any], settings: Settings, source: Path) -> None:
    """Refuse a data set whose documents are not plain values, or that the templates do not fit."""
    for split, rows in splits.items():
        if settings.group and not {MEMBER, DOCUMENT} <= set(rows.column_names):
            raise InputError(f"data.group: {source} is not a group of data sets; a pointer file with `group` names one")
        try:
            firsts = _firsts(rows, settings)
        except TypeError as error:
            raise InputError(
                f"{source}: split {split} has a value that is not a text, number or list ({error})"
            ) from error
        tasks = tasks_of(settings) if firsts else {}
        if others := sorted(firsts.keys() - tasks):
            raise InputError(f"data.group: split {split} of {source} has {', '.join(others)} too; name a task for each")
        for member, document in firsts.items():  # a template can only be tried on one
            make_lm_eval_task(tasks[member], "exact_match", [json.loads(document)])


def check_metric(splits: Mapping[str, Any], settings: Settings, metric: str, source: Path) -> None:
    """Refuse a metric that lm-eval does not compute for a task."""
    for task in tasks_of(settings).values():
        check_given(task, metric)


def columns(settings: Settings) -> Collection[str] | None:
    """Name a group's columns; None for one data set, since lm-eval's templates may read any."""
    return (MEMBER, DOCUMENT) if settings.group else None


def classes(features: Mapping[str, Any], settings: Settings) -> list[str]:
    """Name the choices if all documents have the same ones."""
    if settings.group:
        return []
    choices = tasks_of(settings)[""].get("doc_to_choice")
    return [str(choice) for choice in choices] if isinstance(choices, list) else []


def prepare(rows: Any, settings: Settings, network: Network) -> Iterator[Mapping[str, Tensor]]:
    """Yield each document as JSON bytes, and its data set: lm-eval itself makes questions and tokens of them."""
    assert isinstance(network, TakesTexts), "params.yaml was checked"
    if settings.chat_template and not network.tokenizer.chat_template:
        raise InputError("data.chat_template: the model's tokenizer has no chat template; leave it out")
    yield {"member": pack(_members(rows, settings)), "document": pack(_documents(rows, settings))}


def shown_split(settings: Settings) -> str | None:
    """Name the split of the examples shown before questions; None if none are."""
    return settings.fewshot_split


def write_shown(rows: Any, settings: Settings, folder: Path) -> None:
    """Write that split's documents next to the prepared data."""
    listed = list(zip(_members(rows, settings), _documents(rows, settings), strict=True))
    (folder / SHOWN_FILE).write_text(json.dumps(listed), encoding="utf-8")


def results(network: Network, prepared: Prepared, settings: Settings, metric: str, batch_size: int) -> Results:
    """Return lm-eval's score of each document, or its prediction and label if the metric compares these."""
    return _results(network_as_lm(network, batch_size), prepared, settings, metric)


def served_results(
    server: ModelServer, folder: Path, prepared: Prepared, settings: Settings, metric: str, batch_size: int
) -> Results:
    """Return the same results from the server of a model's folder."""
    model = server_as_lm(server, folder, batch_size)
    if any(task.get("output_type", DEFAULT_TYPE) != DEFAULT_TYPE for task in tasks_of(settings).values()):
        model.check_likelihoods()
    return _results(model, prepared, settings, metric)


def _results(model: Any, prepared: Prepared, settings: Settings, metric: str) -> Results:
    tasks = tasks_of(settings)
    documents = [json.loads(text) for text in unpack(prepared.array("document"))]
    of_member = np.array(unpack(prepared.array("member")))
    values: list[Any] = [None] * len(documents)
    shown = _shown(prepared) if settings.fewshot_split else {}
    for member, task in tasks.items():
        asked = of_member == member
        if not asked.any():
            continue
        before = shown.get(member, [])
        opened = make_lm_eval_task(task, metric, list(compress(documents, asked)), before, settings.num_fewshot or 0)
        samples = samples_of(opened, model, settings.chat_template, settings.system)
        for place, sample in zip(np.flatnonzero(asked), samples, strict=True):
            values[place] = sample[metric]
    if metric in PAIRS:
        labels, predictions = (np.array([int(pair[i]) for pair in values], dtype=np.int64) for i in (0, 1))
        return Results(prediction=predictions, label=labels)
    return Results(score=np.array(values, dtype=np.float64))


def _shown(prepared: Prepared) -> dict[str, list[dict[str, Any]]]:
    """Read the documents to show, by their data set."""
    shots: dict[str, list[dict[str, Any]]] = {}
    for member, document in json.loads((prepared.folder / SHOWN_FILE).read_text(encoding="utf-8")):
        shots.setdefault(member, []).append(json.loads(document))
    return shots


def members(prepared: Prepared, settings: Settings) -> list[str]:
    """Name each document's data set in a group; empty if the data are no group."""
    return unpack(prepared.array("member")) if settings.group else []


def _members(rows: Any, settings: Settings) -> list[str]:
    return list(rows[MEMBER]) if settings.group else [""] * len(rows)


def _documents(rows: Any, settings: Settings) -> list[str]:
    return list(rows[DOCUMENT]) if settings.group else to_json(rows)


def _firsts(rows: Any, settings: Settings) -> dict[str, str]:
    """Return the first document of each data set in a group."""
    members = _members(rows, settings)
    firsts = {member: members.index(member) for member in dict.fromkeys(members)}
    return dict(zip(firsts, _documents(rows.select(firsts.values()), settings), strict=True))
