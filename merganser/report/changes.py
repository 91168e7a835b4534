"""What a run changed: each metric before and after, and why its stages ran."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from merganser.report.paired import Files, Line, Measured, compare_runs

UNSEEN = "measures/unseen"  # scores and examples' results on tasks without a model
FindFile = Callable[[str], Path | None]  # of a run: the file at a path in `data`; None if there is none
Numbers = Mapping[str, Mapping[str, Any]]  # of metrics.json: by entry, nested by metric and task


@dataclass(frozen=True)
class Change:
    """One number of an entry, before and after; None where there was none."""

    entry: str
    number: str  # `mean`, `METRIC/TASK`, ...
    before: float | None
    after: float | None

    @property
    def difference(self) -> float | None:
        """Return the increase; None if one side is missing."""
        return None if self.before is None or self.after is None else self.after - self.before


@dataclass(frozen=True)
class Changes:
    """Everything that changed since a run began."""

    run: str
    causes: Mapping[str, list[str]]  # by stage
    changed: list[Change]
    same: int  # how many numbers did not change
    worse: tuple[Line, ...] = ()  # the scores that fell by more than which examples there are explains


def read_changes(path: Path, run: str | None, now: Numbers) -> Changes | None:
    """Compare the metrics with those saved before the run; None if there were none."""
    kept = json.loads(path.read_text()) if run and path.is_file() else {}
    if kept.get("run") != run or not kept.get("numbers"):
        return None
    before, after = dict(_flat(kept["numbers"])), dict(_flat(now))
    names = [*after, *(name for name in before if name not in after)]
    differing = [name for name in names if before.get(name) != after.get(name)]
    changed = [Change(*name, before.get(name), after.get(name)) for name in differing]
    return Changes(str(run), kept["causes"], changed, len(names) - len(changed))


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


def _flat(numbers: Numbers) -> Iterator[tuple[tuple[str, str], float | None]]:
    for entry, values in numbers.items():
        yield from (((entry, name), number) for name, number in _named(values))


def _named(values: Mapping[str, Any]) -> Iterator[tuple[str, float | None]]:
    """Give each number with the keys that lead to it: `unseen/accuracy/TASK`."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from ((f"{name}/{inner}", number) for inner, number in _named(value))
        else:
            yield name, value
