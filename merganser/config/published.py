"""Papers' figures for a comparison's entries: the file that `published.source` of params.yaml names.

Figures are times 100, as papers print them. A row is an entry of `methods`. A column is a task, their `mean`,
`normalised`: the mean of the scores over those of the tasks' own models, `adr`: how far the mean lies below those
models' mean, as a share of it, or `amr`: the bytes a task adds, as a share of a model's. Unseen tasks have columns too,
and their mean is `unseen`.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from merganser import registry
from merganser.config.mistakes import mistakes_in
from merganser.config.params import Params
from merganser.config.sections import Strict, Text
from merganser.errors import InputError, did_you_mean
from merganser.limits import read_yaml

MEAN, NORMALISED, DROP_RATE, MEMORY = "mean", "normalised", "adr", "amr"
MEANS = (MEAN, NORMALISED, DROP_RATE)  # over all tasks
SUMMARIES = (*MEANS, MEMORY)
UNSEEN = "unseen"  # the mean over tasks without a model
READS, MATRICES = "reads", "matrices"  # what a row may say beside its method's parameters
SEARCHED = "searches/"
Figure = Annotated[float, Field(ge=-100, le=200)]
Value = int | float | str | bool | None


class Table(Strict):
    """A table of a paper, or part of one.

    `checkpoints`: whether it was measured on the same checkpoints, or on others trained alike. `decimals`: its
    digits after the point. `parameters`: each entry's values there, with its `reads` and `matrices`, null if the
    paper does not say; `notes`: other differences between the experiments.
    """

    paper: Text
    table: Text
    protocol: Text
    checkpoints: Literal["these", "others"]
    decimals: Annotated[int, Field(ge=0, le=4)]
    columns: Annotated[list[Text], Field(min_length=1)]
    rows: Annotated[dict[Text, list[Figure | None]], Field(min_length=1)]
    parameters: dict[Text, dict[Text, Value]] = Field(default={})
    notes: dict[Text, Text] = Field(default={})

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if len(set(self.columns)) < len(self.columns):
            raise ValueError(f"columns: one is named twice, got {', '.join(self.columns)}")
        for name, row in self.rows.items():
            if len(row) != len(self.columns):
                raise ValueError(f"rows.{name}: expected {len(self.columns)} figures, one a column, got {len(row)}")
        for section, names in (("parameters", self.parameters), ("notes", self.notes)):
            for name in names:
                if name not in self.rows:
                    raise ValueError(f"{section}.{name}: not in rows{did_you_mean(name, self.rows)}")
        return self


class Published(Strict):
    """All tables; `tasks`: the tasks of every mean, `unseen`: unseen tasks of the mean with this name."""

    tasks: Annotated[list[Text], Field(min_length=1)]
    unseen: list[Text] = Field(default=[])
    tables: Annotated[list[Table], Field(min_length=1)]

    @model_validator(mode="after")
    def _columns_are_tasks(self) -> Self:
        summaries = [*SUMMARIES, *([UNSEEN] if self.unseen else [])]
        known = [*summaries, *self.tasks, *self.unseen]
        for table in self.tables:
            for column in table.columns:
                if column not in known:
                    near = did_you_mean(column, known)
                    of_all = " nor ".join(summaries)
                    raise ValueError(f"{table.table}: columns: {column!r} is neither {of_all} nor one of tasks{near}")
        return self


def read_published(path: Path) -> Published:
    """Read a file of published figures; raise InputError naming every mistake in it."""
    if not path.is_file():
        raise InputError(f"{path}: no such file; that of a suite is written by `merganser use NAME`")
    return parse_published(read_yaml(path), path)


def parse_published(content: Any, path: Path) -> Published:
    """Check the content of such a file; raise InputError naming every mistake in it."""
    if not isinstance(content, dict):
        raise InputError(f"{path}: expected a mapping with the keys {', '.join(Published.model_fields)}")
    if mistakes := mistakes_in(content, Published):
        raise InputError("\n".join(f"{path}: {mistake}" for mistake in mistakes))
    return Published.model_validate(content)


def stands_beside(dialect: Mapping[str, Value], reads: str) -> bool:
    """Tell whether a row's figures may stand next to an entry that reads this input.

    They may not if the row's input differs, or if the entry is searched and the row is not.
    """
    return dialect[READS] == reads if READS in dialect else not reads.startswith(SEARCHED)


def published_mistakes(published: Published, params: Params, *others: Params) -> list[str]:
    """List figures without an entry or task in a params.yaml: suites have none, but edited files may.

    `others`: further comparisons of the same tasks, such as a suite's grids, whose entries may have rows too.
    """
    mistakes = []
    if set(published.tasks) != set(params.measured):
        mistakes.append(f"tasks: expected those of params.yaml, {', '.join(params.measured)}")
    if set(published.unseen) != set(params.unseen):
        mistakes.append(f"unseen: expected those of params.yaml, {', '.join(params.unseen) or 'none'}")
    methods = {name: entry for each in (*others, params) for name, entry in each.methods.items()}
    for table in published.tables:
        for name in table.rows:
            if name not in methods:
                mistakes.append(f"{table.table}: rows: no entry {name!r}{did_you_mean(name, methods)}")
        for name, values in table.parameters.items():
            if name in methods:
                method = registry.get(methods[name].method)
                known = [READS, MATRICES, *method.parameters.model_fields]
                mistakes += [
                    f"{table.table}: parameters.{name}: {method.name} has no {key!r}{did_you_mean(key, known)}"
                    for key in values
                    if key not in known
                ]
    return mistakes
