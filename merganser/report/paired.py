"""Two runs' scores side by side, by paired tests on the same examples."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from merganser.evaluation.examples import read_results
from merganser.measures.significance import LEVEL, Pairs, compare_models, holm, mean_of_tasks
from merganser.outputs import read_json
from merganser.report.significance import MEAN, same_examples

UNSEEN = "measures/unseen"  # scores and examples' results on tasks without a model
Find = Callable[[str, str], Path | None]  # of a run: the file of an entry's task; None if there is none
FindFile = Callable[[str], Path | None]  # of a run: the file at a path in `data`; None if there is none


@dataclass(frozen=True)
class Line:
    """An entry's score on a task, or its mean, in both runs; `p`: two-sided, after Holm's correction over all lines.

    None: there are not the same examples on both sides.
    """

    entry: str
    column: str
    first: float
    second: float
    p: float | None = None

    @property
    def difference(self) -> float:
        """Return how much more the second run has."""
        return self.second - self.first

    @property
    def is_worse(self) -> bool:
        """Tell whether the second run is worse, by more than which examples there are explains."""
        return self.difference < 0 and self.p is not None and self.p < LEVEL


@dataclass(frozen=True)
class Files:
    """Where a run's files are: its metrics, and its examples' results, by entry and task."""

    metrics: Find
    examples: Find

    def metric(self, entry: str, task: str) -> Mapping[str, Any]:
        """Return a score with its metric and error; empty if there is none."""
        path = self.metrics(entry, task)
        return read_json(path) if path else {}


@dataclass(frozen=True)
class Measured:
    """Tasks that two runs measured, and where each run has their files; `unseen`: they have no model."""

    tasks: Sequence[str]
    first: Files
    second: Files
    unseen: bool = False

    @property
    def mean(self) -> str:
        """Return the column of the mean over them."""
        return "unseen" if self.unseen else MEAN

    def column(self, task: str) -> str:
        """Return a task's column, named as in `results.csv`."""
        return f"unseen_{task}" if self.unseen else task


def compare_runs(entries: Sequence[str], measured: Sequence[Measured]) -> list[Line]:
    """Compare entries on the tasks that both runs measured, each entry's mean before its tasks."""
    lines = [line for entry in entries for each in measured for line in _lines(entry, each)]
    corrected = iter(holm(np.array([line.p for line in lines if line.p is not None])).tolist())
    return [each if each.p is None else replace(each, p=next(corrected)) for each in lines]


def _lines(entry: str, measured: Measured) -> list[Line]:
    """Compare an entry on tasks of one kind, their mean first; p as yet without a correction."""
    pairs: list[Pairs | None] = []
    own: list[Line] = []
    for task in measured.tasks:
        runs = (measured.first, measured.second)
        found = [run.metric(entry, task) for run in runs]
        if not all("value" in each for each in found) or found[0]["metric"] != found[1]["metric"]:
            continue
        files = [run.examples(entry, task) for run in runs]
        results = [read_results(path) for path in files if path]
        tested = len(results) == len(files) and same_examples(*results)
        pairs.append(compare_models(found[0]["metric"], results) if tested else None)
        own.append(Line(entry, measured.column(task), found[0]["value"], found[1]["value"], _p(pairs[-1])))
    if not own:
        return []
    means = [float(np.mean([getattr(line, side) for line in own])) for side in ("first", "second")]
    known = [each for each in pairs if each is not None]
    whole = mean_of_tasks(known) if len(known) == len(pairs) else None
    return [Line(entry, measured.mean, means[0], means[1], _p(whole)), *own]


def _p(pairs: Pairs | None) -> float | None:
    return None if pairs is None else float(pairs.p[1, 0])


def worse_scores(
    entries: Sequence[str], tasks: Sequence[str], unseen: Sequence[str], before: Path, after: Path
) -> tuple[Line, ...]:
    """Return the scores that fell since then beyond the sampling error, on tasks with a model and without.

    Each folder has `metrics`, `examples` and, where tasks are unseen, `measures/unseen`.
    """
    found = compare_scores(entries, tasks, unseen, _files_in(before), _files_in(after))
    return tuple(line for line in found if line.is_worse)


def compare_scores(
    entries: Sequence[str], tasks: Sequence[str], unseen: Sequence[str], first: FindFile, second: FindFile
) -> list[Line]:
    """Compare the scores of two runs, on tasks with a model and without."""
    held_out = [score_files(find, UNSEEN, UNSEEN) for find in (first, second)]
    measured = [
        Measured(tasks, score_files(first), score_files(second)),
        Measured(unseen, held_out[0], held_out[1], unseen=True),
    ]
    return compare_runs(entries, measured)


def score_files(find: FindFile, metrics: str = "metrics", examples: str = "examples") -> Files:
    """Say where a run's scores and its examples' results are, by the folders in `data` that have them."""
    return Files(
        lambda entry, task: find(f"{metrics}/{entry}/{task}.json"),
        lambda entry, task: find(f"{examples}/{entry}/{task}.safetensors"),
    )


def _files_in(folder: Path) -> FindFile:
    return lambda name: path if (path := folder / name).is_file() else None
