"""Which entries are as good as the best of their group, as far as the examples can tell."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

import numpy as np

from merganser.errors import InputError
from merganser.evaluation.examples import Results, read_results
from merganser.measures.significance import LEVEL, Pairs, compare_models, holm, mean_of_tasks, over_tasks
from merganser.report.rows import Row, in_league, leagues
from merganser.report.tables import Tables

MEAN = "mean"


class Verdict(NamedTuple):
    """One entry against the best of its group that had data as it did, on one task or in the mean."""

    group: str  # and whether its entries had data
    column: str  # a task, or MEAN
    entry: str
    best: str
    difference: float  # of the entry's value from the best one's
    p: float
    corrected: float  # for the number of entries that are compared with the same best one
    low: float | None = None  # of the mean difference over the tasks as a sample: its 95 % interval
    high: float | None = None
    corrected_over_tasks: float | None = None  # and its p-value, corrected alike

    @property
    def tied(self) -> bool:
        """Tell whether the two cannot be told apart."""
        return self.corrected >= LEVEL


@dataclass(frozen=True)
class Significance:
    """All pairs of entries, by column, and each entry against the best of its group."""

    entries: Sequence[str]
    pairs: Mapping[str, Pairs]
    verdicts: Mapping[tuple[str, str], Verdict]  # by entry and column


def read_significance(rows: Sequence[Row], examples: Path) -> Significance:
    """Test all pairs of entries on the examples that every one was evaluated on; raise InputError naming a file."""
    metrics = rows[0].scores.metrics
    tasks = {task: compare_models(metric, _read(rows, task, examples)) for task, metric in metrics.items()}
    pairs = {**tasks, MEAN: mean_of_tasks(list(tasks.values()))}
    verdicts = [
        v for column in pairs for league in leagues(rows) for v in _verdicts(list(rows), league, column, pairs[column])
    ]
    return Significance([row.entry for row in rows], pairs, {(v.entry, v.column): v for v in verdicts})


def tables_of(significance: Significance, prefix: str = "") -> Tables:
    """Return entries against the best of their group, and all pairs of entries; `prefix`: of the tables' names."""
    verdicts = sorted(significance.verdicts.values(), key=lambda v: (v.column != MEAN, v.column, v.group))
    lines = [
        [column, first, second, float(pairs.difference[i, j]), float(pairs.p[i, j])]
        for column, pairs in significance.pairs.items()
        for (i, first), (j, second) in combinations(enumerate(significance.entries), 2)
    ]
    return {
        f"{prefix}significance.csv": (Verdict._fields, verdicts),
        f"{prefix}pairs.csv": (["column", "entry", "other", "difference", "p"], lines),
    }


def on_unseen(rows: Sequence[Row]) -> list[Row]:
    """Return the rows with their scores on unseen tasks in place of those on the others."""
    return [replace(row, scores=replace(row.scores, by_task=row.scores.unseen)) for row in rows]


def _read(rows: Sequence[Row], task: str, examples: Path) -> list[Results]:
    files = [examples / row.entry / f"{task}.safetensors" for row in rows]
    found = [read_results(file) for file in files]
    for file, results in zip(files, found, strict=True):
        if not same_examples(results, found[0]):
            raise InputError(f"{file}: has other examples than {files[0]}; evaluate both again")
    return found


def same_examples(one: Results, other: Results) -> bool:
    """Tell whether results are of the same examples, as far as their number and labels can tell."""
    if len(one) != len(other) or (one.score is None) != (other.score is None):
        return False
    return one.label is None or other.label is None or np.array_equal(one.label, other.label)


def _verdicts(rows: list[Row], league: str, column: str, pairs: Pairs) -> list[Verdict]:
    """Compare a league's entries with its best one."""
    members = in_league(rows, league)
    if len(members) < 2:
        return []
    best = max(members, key=lambda row: row.scores.mean if column == MEAN else row.scores.values[column])
    others = [row for row in members if row is not best]
    index = {row.entry: number for number, row in enumerate(rows)}
    at = [index[row.entry] for row in others], [index[best.entry]] * len(others)
    differences, p = pairs.difference[at], pairs.p[at]
    found = zip(others, differences.tolist(), p.tolist(), holm(p).tolist(), strict=True)
    verdicts = [Verdict(league, column, row.entry, best.entry, *numbers) for row, *numbers in found]
    return _with_tasks(verdicts, others, best) if column == MEAN else verdicts


def _with_tasks(verdicts: list[Verdict], others: Sequence[Row], best: Row) -> list[Verdict]:
    """Add how the means compare if the tasks are a sample too."""
    values = best.scores.values
    tested = [over_tasks([row.scores.values[task] - value for task, value in values.items()]) for row in others]
    corrected = iter(holm(np.array([each.p for each in tested if each])).tolist())
    return [
        verdict._replace(low=each.low, high=each.high, corrected_over_tasks=next(corrected)) if each else verdict
        for verdict, each in zip(verdicts, tested, strict=True)
    ]
