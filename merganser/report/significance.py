"""Which entries are as good as the best of their group, as far as the examples can tell."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from merganser.errors import InputError
from merganser.evaluation.examples import Results, read_results
from merganser.measures.significance import LEVEL, Pairs, compare_models, holm, mean_of_tasks
from merganser.report.rows import GROUPS, Row, in_group

MEAN = "mean"


class Verdict(NamedTuple):
    """One entry against the best of its group, on one task or in the mean."""

    group: str
    column: str  # a task, or MEAN
    entry: str
    best: str
    difference: float  # of the entry's value from the best one's
    p: float
    corrected: float  # for the number of entries that are compared with the same best one

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

    def ties(self, column: str) -> dict[str, list[str]]:
        """List by the best entry of each group, with others in it, those that cannot be told from it in a column."""
        found: dict[str, list[str]] = {}
        for verdict in self.verdicts.values():
            if verdict.column == column:
                found.setdefault(verdict.best, []).extend([verdict.entry] if verdict.tied else [])
        return found


def read_significance(rows: Sequence[Row], examples: Path) -> Significance:
    """Test all pairs of entries on the examples that every one was evaluated on; raise InputError naming a file."""
    metrics = rows[0].scores.metrics
    tasks = {task: compare_models(metric, _read(rows, task, examples)) for task, metric in metrics.items()}
    pairs = {**tasks, MEAN: mean_of_tasks(list(tasks.values()))}
    verdicts = [v for column in pairs for group in GROUPS for v in _verdicts(list(rows), group, column, pairs[column])]
    return Significance([row.entry for row in rows], pairs, {(v.entry, v.column): v for v in verdicts})


def _read(rows: Sequence[Row], task: str, examples: Path) -> list[Results]:
    files = [examples / row.entry / f"{task}.safetensors" for row in rows]
    found = [read_results(file) for file in files]
    for file, results in zip(files, found, strict=True):
        if not _same_examples(results, found[0]):
            raise InputError(f"{file}: has other examples than {files[0]}; evaluate both again")
    return found


def _same_examples(one: Results, other: Results) -> bool:
    if len(one) != len(other) or (one.score is None) != (other.score is None):
        return False
    return one.label is None or other.label is None or np.array_equal(one.label, other.label)


def _verdicts(rows: list[Row], group: str, column: str, pairs: Pairs) -> list[Verdict]:
    """Compare a group's entries with its best one; references are no competitors."""
    members = [] if group == "reference" else in_group(rows, group)
    if len(members) < 2:
        return []
    best = max(members, key=lambda row: row.scores.mean if column == MEAN else row.scores.values[column])
    others = [row for row in members if row is not best]
    index = {row.entry: number for number, row in enumerate(rows)}
    at = [index[row.entry] for row in others], [index[best.entry]] * len(others)
    differences, p = pairs.difference[at], pairs.p[at]
    found = zip(others, differences.tolist(), p.tolist(), holm(p).tolist(), strict=True)
    return [Verdict(group, column, row.entry, best.entry, *numbers) for row, *numbers in found]
