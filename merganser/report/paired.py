"""Paired tests on the same examples: two runs' scores, and the entries that are tied with the best of their group."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

import numpy as np

from merganser.errors import InputError
from merganser.evaluation.examples import Results, read_results
from merganser.measures.scores import LEVEL, rank_value
from merganser.measures.significance import Pairs, compare_models, holm, mean_of_tasks, over_tasks
from merganser.report.formats import Tables
from merganser.report.rows import MEAN, Row, in_league, leagues
from merganser.report.run_scores import FindFile, PairedScore, files_in, read_score

MANY = 100  # entries


class Verdict(NamedTuple):
    """An entry against the best of its league (the same group and use of data), on one task or in the mean."""

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
        """Tell whether the test finds no difference."""
        return self.corrected >= LEVEL


@dataclass(frozen=True)
class Significance:
    """All pairs of entries, by column, and each entry against the best of its league."""

    entries: Sequence[str]
    pairs: Mapping[str, Pairs]
    verdicts: Mapping[tuple[str, str], Verdict]  # by entry and column


def read_significance(rows: Sequence[Row], examples: Path) -> Significance:
    """Test all pairs of entries on their common examples; raise InputError naming a missing file."""
    metrics = rows[0].scores.metrics
    tasks = {
        task: compare_models(metric, _read(rows, task, examples), [row.scores.values[task] for row in rows])
        for task, metric in metrics.items()
    }
    pairs = {**tasks, MEAN: mean_of_tasks(list(tasks.values()))}
    verdicts = [
        v for column in pairs for league in leagues(rows) for v in _verdicts(list(rows), league, column, pairs[column])
    ]
    return Significance([row.entry for row in rows], pairs, {(v.entry, v.column): v for v in verdicts})


def pair_tables(significance: Significance, prefix: str = "") -> Tables:
    """Return entries against the best of their league, and all pairs; `prefix`: of the tables' names.

    With more than `MANY` entries there are only pairs of means, and only in Parquet.
    """
    verdicts = sorted(significance.verdicts.values(), key=lambda v: (v.column != MEAN, v.column, v.group))
    many = len(significance.entries) > MANY
    lines = [
        [column, first, second, float(pairs.difference[i, j]), float(pairs.p[i, j])]
        for column, pairs in significance.pairs.items()
        if column == MEAN or not many
        for (i, first), (j, second) in combinations(enumerate(significance.entries), 2)
    ]
    table = ["column", "entry", "other", "difference", "p"], lines
    return {
        f"{prefix}significance.csv": (Verdict._fields, verdicts),
        f"{prefix}pairs.parquet": table,
        **({} if many else {f"{prefix}pairs.csv": table}),
    }


def on_unseen(rows: Sequence[Row]) -> list[Row]:
    """Return the rows with their scores on unseen tasks instead of the others."""
    return [replace(row, scores=replace(row.scores, by_task=row.scores.unseen)) for row in rows]


def _read(rows: Sequence[Row], task: str, examples: Path) -> list[Results]:
    files = [examples / row.entry / f"{task}.safetensors" for row in rows]
    files_read = [read_results(file) for file in files]
    for file, results in zip(files, files_read, strict=True):
        if not same_examples(results, files_read[0]):
            raise InputError(f"{file}: has other examples than {files[0]}; evaluate both again")
    return files_read


def same_examples(one: Results, other: Results) -> bool:
    """Tell whether two results seem to be of the same examples, by number and labels."""
    if len(one) != len(other) or (one.score is None) != (other.score is None):
        return False
    return one.label is None or other.label is None or np.array_equal(one.label, other.label)


def _verdicts(rows: list[Row], league: str, column: str, pairs: Pairs) -> list[Verdict]:
    """Compare a league's entries with its best one."""
    members = in_league(rows, league)
    if len(members) < 2:
        return []
    best = max(members, key=lambda row: rank_value(row.scores.mean if column == MEAN else row.scores.values[column]))
    others = [row for row in members if row is not best]
    index = {row.entry: number for number, row in enumerate(rows)}
    at = [index[row.entry] for row in others], [index[best.entry]] * len(others)
    differences, p = pairs.difference[at], pairs.p[at]
    compared = zip(others, differences.tolist(), p.tolist(), holm(p).tolist(), strict=True)
    verdicts = [Verdict(league, column, row.entry, best.entry, *numbers) for row, *numbers in compared]
    return _with_tasks(verdicts, others, best) if column == MEAN else verdicts


def _with_tasks(verdicts: list[Verdict], others: Sequence[Row], best: Row) -> list[Verdict]:
    """Add the test of the means that treats the tasks as a sample too."""
    values = best.scores.values
    tested = [over_tasks([row.scores.values[task] - value for task, value in values.items()]) for row in others]
    corrected = iter(holm(np.array([pair.p for pair in tested if pair])).tolist())
    return [
        verdict._replace(low=pair.low, high=pair.high, corrected_over_tasks=next(corrected)) if pair else verdict
        for verdict, pair in zip(verdicts, tested, strict=True)
    ]


UNSEEN = "measures/unseen"  # scores and examples' results on tasks without a model


def worse_scores(
    entries: Sequence[str], tasks: Sequence[str], unseen: Sequence[str], before: Path, after: Path
) -> tuple[PairedScore, ...]:
    """Return the scores that fell by more than the sampling error, on tasks with a model and unseen ones.

    Each folder has `metrics`, `examples` and, with unseen tasks, `measures/unseen`.
    """
    lines = compare_scores(entries, tasks, unseen, files_in(before), files_in(after))
    return tuple(line for line in lines if line.is_worse)


def compare_scores(
    entries: Sequence[str], tasks: Sequence[str], unseen: Sequence[str], first: FindFile, second: FindFile
) -> list[PairedScore]:
    """Compare the scores of two runs, each entry's mean before its tasks; unseen tasks have no model."""
    runs, lines = (first, second), list[PairedScore]()
    for entry in entries:
        lines += [*_lines(entry, tasks, runs), *_lines(entry, unseen, runs, unseen=True)]
    corrected = iter(holm(np.array([line.p for line in lines if line.p is not None])).tolist())
    return [each if each.p is None else replace(each, p=next(corrected)) for each in lines]


def _lines(
    entry: str, tasks: Sequence[str], runs: tuple[FindFile, FindFile], *, unseen: bool = False
) -> list[PairedScore]:
    """Compare an entry on tasks of one kind, mean first, with columns as in `results.csv`; p is not corrected yet."""
    metrics, examples = (UNSEEN, UNSEEN) if unseen else ("metrics", "examples")
    mean, prefix = ("unseen", "unseen_") if unseen else (MEAN, "")
    pairs: list[Pairs | None] = []
    own: list[PairedScore] = []
    for task in tasks:
        scores = [read_score(find, entry, task, metrics) for find in runs]
        if not all("value" in each for each in scores) or scores[0]["metric"] != scores[1]["metric"]:
            continue
        files = [find(f"{examples}/{entry}/{task}.safetensors") for find in runs]
        results = [read_results(path) for path in files if path]
        tested = len(results) == len(files) and same_examples(*results)
        values = [each["value"] for each in scores]
        pairs.append(compare_models(scores[0]["metric"], results, values) if tested else None)
        own.append(PairedScore(entry, prefix + task, values[0], values[1], _p(pairs[-1])))
    if not own:
        return []
    means = [float(np.mean([getattr(line, side) for line in own])) for side in ("first", "second")]
    known = [each for each in pairs if each is not None]
    whole = mean_of_tasks(known) if len(known) == len(pairs) else None
    return [PairedScore(entry, mean, means[0], means[1], _p(whole)), *own]


def _p(pairs: Pairs | None) -> float | None:
    return None if pairs is None else float(pairs.p[1, 0])
