"""Changes of a run: each metric before and after, and the reasons why its stages ran."""

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from merganser.report.comparison import Comparison
from merganser.report.formats import Tables
from merganser.report.paired import worse_scores
from merganser.report.run_scores import PairedScore
from merganser.report.sections import Section

Numbers = Mapping[str, Mapping[str, Any]]  # of metrics.json: by entry, nested by metric and task


@dataclass(frozen=True)
class Change:
    """One number of an entry, before and after; None if it is missing."""

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
    worse: tuple[PairedScore, ...] = ()  # the scores that fell by more than which examples there are explains


def read(comparison: Comparison) -> Changes | None:
    """Compare this run's results with those saved before it; None if there were none."""
    paths, params = comparison.paths, comparison.params
    changes = read_changes(paths.PREVIOUS_METRICS, os.environ.get("DVCFLEET_RUN"), comparison.numbers)
    if changes is None:
        return None
    entries, unseen = [row.entry for row in comparison.rows], list(params.unseen)
    worse = worse_scores(entries, comparison.tasks, unseen, paths.PREVIOUS, paths.METRICS.parent)
    return replace(changes, worse=worse)


def read_changes(path: Path, run: str | None, now: Numbers) -> Changes | None:
    """Compare the metrics with those saved before the run; None if there were none."""
    kept = json.loads(path.read_text(encoding="utf-8")) if run and path.is_file() else {}
    if kept.get("run") != run or not kept.get("numbers"):
        return None
    before, after = dict(_flat(kept["numbers"])), dict(_flat(now))
    names = [*after, *(name for name in before if name not in after)]
    differing = [name for name in names if before.get(name) != after.get(name)]
    changed = [Change(*name, before.get(name), after.get(name)) for name in differing]
    return Changes(str(run), kept["causes"], changed, len(names) - len(changed))


def _flat(numbers: Numbers) -> Iterator[tuple[tuple[str, str], float | None]]:
    for entry, values in numbers.items():
        yield from (((entry, name), number) for name, number in _named(values))


def _named(values: Mapping[str, Any]) -> Iterator[tuple[str, float | None]]:
    """Yield each number with its keys: `unseen/accuracy/TASK`."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from ((f"{name}/{inner}", number) for inner, number in _named(value))
        else:
            yield name, value


def tables(changes: Changes) -> Tables:
    """Return the numbers that the run changed, and the scores that fell by more than the sampling error."""
    changed = [[c.entry, c.number, c.before, c.after, c.difference] for c in changes.changed]
    worse = [[line.entry, line.column, line.first, line.second, line.p] for line in changes.worse]
    return {
        "changes.csv": (["entry", "number", "before", "after", "difference"], changed),
        "worse.csv": (["entry", "column", "before", "after", "p"], worse),
    }


SECTION = Section(read=read, tables=tables)
