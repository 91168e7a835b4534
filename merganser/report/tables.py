"""The tables as CSV: for people, and for `dvc plots`."""

import csv
import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from math import isnan
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np

from merganser.evaluation.scoring import Score, by_data_set
from merganser.report import bounds, explanations
from merganser.report.changes import Changes
from merganser.report.choices import Choice
from merganser.report.confusions import Confusions
from merganser.report.measured import BY_LAYER, Measured
from merganser.report.published import Reproduced
from merganser.report.rows import Row
from merganser.report.scores import values_of
from merganser.report.significance import MEAN, Significance, Verdict
from merganser.report.studies import Point, RankPoint, StudyResults, Summary
from merganser.report.sweeps import Curve

IDENTITY = ("entry", "method", "reads", "family", "group", "data")
MEASURES = ("mean", "normalised_score", "score_drop_rate", "amr", "wall_s", "peak_rss_bytes")


def write_tables(folder: Path, rows: Sequence[Row], tasks: Sequence[str], partial: str | None = None) -> None:
    """Write `results.csv` and, for the plots, `plots/scores.csv` and `plots/cost.csv`.

    `partial`: why the scores are not of all examples; results.csv then says so in each row.
    """
    plots, marked = folder / "plots", [partial] if partial else []
    results = [
        [
            *_identity(r),
            *(r.scores.values[task] for task in tasks),
            *_measures(r).values(),
            r.scores.error,
            r.scores.spread,
            *r.spent.values(),
            r.before_s,
        ]
        for r in rows
    ]
    header = [*IDENTITY, *tasks, *MEASURES, "stderr", "spread", "forwards", "backwards", "before_s"]
    if unseen := list(rows[0].scores.unseen):
        header += ["unseen", *(f"unseen_{task}" for task in unseen)]
        for row, line in zip(rows, results, strict=True):
            line += [row.scores.unseen_mean, *values_of(row.scores.unseen).values()]
    header += ["partial"] if marked else []
    write_csv(folder / "results.csv", header, [[*line, *marked] for line in results])
    found = [(r.entry, task, r.scores.by_task[task]) for r in rows for task in tasks]
    lines = [[e, task, s["metric"], s["value"], s["stderr"], s["count"], s.get("spread")] for e, task, s in found]
    write_csv(plots / "scores.csv", ["entry", "task", "metric", "value", "stderr", "count", "spread"], lines)
    cost = [[r.entry, *(_measures(r)[name] for name in ("normalised_score", "amr", "wall_s"))] for r in rows]
    write_csv(plots / "cost.csv", ["entry", "normalised_score", "amr", "wall_s"], cost)


def write_routed(folder: Path, rows: Sequence[Row]) -> None:
    """Write `routed.csv`, where entries are evaluated without the task's label: each value, and that with it."""
    found = [(row.entry, task, score) for row in rows for task, score in row.scores.by_task.items() if "known" in score]
    lines = [[entry, task, s["metric"], s["value"], s["known"], s["router"]] for entry, task, s in found]
    if lines:
        write_csv(folder / "routed.csv", ["entry", "task", "metric", "routed", "known", "router"], lines)


def write_unseen(folder: Path, rows: Sequence[Row]) -> None:
    """Write `unseen.csv`, where there are tasks without a model: each value, and those of mixtures of parts."""
    keys = ("metric", "value", "stderr", "count", "uniform", "similar", "oracle", "oracle_task")
    found = [(row.entry, task, score) for row in rows for task, score in row.scores.unseen.items()]
    if found:
        lines = [[entry, task, *(score.get(key) for key in keys)] for entry, task, score in found]
        write_csv(folder / "unseen.csv", ["entry", "task", *keys], lines)


def write_data_sets(folder: Path, rows: Sequence[Row]) -> None:
    """Write `data_sets.csv`, where a task is measured on a group of data sets: the value on each."""
    found = [
        (row, task, name, value) for row in rows for (task, name), value in by_data_set(row.scores.by_task).items()
    ]
    lines = [[row.entry, task, name, row.scores.by_task[task]["metric"], value] for row, task, name, value in found]
    if lines:
        write_csv(folder / "data_sets.csv", ["entry", "task", "data_set", "metric", "value"], lines)


def write_measures(folder: Path, measured: Measured) -> None:
    """Write `measures.json`, `bounds.csv`; in `plots/` `layers.csv`, `cosines.csv`, `alignment.csv`, `errors.csv`."""
    plots = folder / "plots"
    (folder / "measures.json").write_text(json.dumps(measured.as_json()) + "\n")
    write_csv(folder / "bounds.csv", bounds.HEADER, bounds.bound_lines(measured))
    columns = {name: measured.by_layer(name) for name in BY_LAYER}
    layers = [[name, *(column[name] for column in columns.values())] for name in measured.matrices]
    write_csv(plots / "layers.csv", ["layer", *columns], layers)
    pairs = zip(measured.tasks, measured.cosines.tolist(), strict=True)
    cosines = [[a, b, value] for a, row in pairs for b, value in zip(measured.tasks, row, strict=True)]
    write_csv(plots / "cosines.csv", ["task", "other", "cosine"], cosines)
    for name, measure, entries in (
        ("alignment", "sar", measured.merges(parts=False)),
        ("errors", "error", measured.merges(parts=True)),
    ):
        found = [zip(measured.tasks, measured.overall(entry).tolist(), strict=True) for entry in entries]
        lines = [[entry, *pair] for entry, pairs in zip(entries, found, strict=True) for pair in pairs]
        write_csv(plots / f"{name}.csv", ["entry", "task", measure], lines)


def write_explanations(folder: Path, found: explanations.Explanations) -> None:
    """Write `explanations.csv`: how each measure goes with the score that is lost, over matrices and in each."""
    if found.explained:
        lines = explanations.explained_lines(found.explained)
        write_csv(folder / "explanations.csv", explanations.HEADER, lines)


def write_confusions(folder: Path, found: Confusions) -> None:
    """Write `confusions.csv`: of each task's classes by their order, the share of examples answered so, zeros apart."""
    if found.by_task:
        lines = [
            [found.entry, task, label, answer, float(shares[label, answer])]
            for task, shares in found.by_task.items()
            for label, answer in np.argwhere(shares > 0).tolist()
        ]
        write_csv(folder / "confusions.csv", ["entry", "task", "label", "answer", "share"], lines)


def write_searches(folder: Path, curves: Mapping[str, Curve]) -> None:
    """Write `plots/searches.csv`: each entry's scores on the validation data over the scaling that its search tried."""
    if curves:
        header = ["entry", "method", "parameter", "value", "task", "score", "stderr"]
        write_csv(folder / "plots/searches.csv", header, [line for curve in curves.values() for line in curve.lines])


def write_significance(folder: Path, significance: Significance, prefix: str = "") -> None:
    """Write `significance.csv`, entries against the best of their group, and `pairs.csv`, all pairs of entries.

    `prefix`: what their names begin with.
    """
    verdicts = sorted(significance.verdicts.values(), key=lambda v: (v.column != MEAN, v.column, v.group))
    write_csv(folder / f"{prefix}significance.csv", Verdict._fields, verdicts)
    lines = [
        [column, first, second, float(pairs.difference[i, j]), float(pairs.p[i, j])]
        for column, pairs in significance.pairs.items()
        for (i, first), (j, second) in combinations(enumerate(significance.entries), 2)
    ]
    write_csv(folder / f"{prefix}pairs.csv", ["column", "entry", "other", "difference", "p"], lines)


def write_choices(folder: Path, choices: Sequence[Choice]) -> None:
    """Write `choices.csv`: for each budget the best entry, then those within the error of it; no line where none is."""
    lines = [
        [c.budget.key, c.data, r.entry, c.entries, p, r.scores.mean, r.scores.error, r.amr, r.seconds]
        for c in choices
        for r, p in zip(c.members, [None, *c.p], strict=False)
    ]
    header = ["budget", "data", "entry", "of", "p", "mean", "stderr", "amr", "seconds"]
    write_csv(folder / "choices.csv", header, lines)


def write_changes(folder: Path, changes: Changes | None) -> None:
    """Write `changes.csv`, the numbers that a run changed, where a run says what they were before, and `worse.csv`.

    That has those that fell by more than the sampling error.
    """
    if changes:
        lines = [[c.entry, c.number, c.before, c.after, c.difference] for c in changes.changed]
        write_csv(folder / "changes.csv", ["entry", "number", "before", "after", "difference"], lines)
        worse = [[line.entry, line.column, line.first, line.second, line.p] for line in changes.worse]
        write_csv(folder / "worse.csv", ["entry", "column", "before", "after", "p"], worse)


def write_published(folder: Path, reproduced: Sequence[Reproduced]) -> None:
    """Write `published.csv`, what papers report beside what was measured."""
    about, numbers = ("paper", "table", "protocol", "checkpoints"), ("difference", "stderr", "beyond")
    of_table, of_figure = attrgetter(*about), attrgetter("ours", "theirs", *numbers)
    lines = [
        [*of_table(each.table), entry, column, *of_figure(figure), each.notes.get(entry)]
        for each in reproduced
        for entry, row in each.figures.items()
        for column, figure in row.items()
    ]
    header = [*about, "entry", "column", "ours", "published", *numbers, "note"]
    write_csv(folder / "published.csv", header, lines)


def write_studies(folder: Path, results: StudyResults) -> None:
    """Write `studies.json` and, of what was studied, `plots/study_tasks.csv`, `study_sizes.csv`, `study_rank.csv`,
    `study_sweeps.csv`, `study_ablations.csv`, `study_budgets.csv`.
    """
    (folder / "studies.json").write_text(json.dumps(results.as_json(), indent=2) + "\n")
    if results.points:
        lines = [[*p[:2], "+".join(p.subset), *p[3:-1]] for p in results.points]
        write_csv(folder / "plots/study_tasks.csv", Point._fields[:-1], lines)
        write_csv(folder / "plots/study_sizes.csv", Summary._fields, results.summaries)
    if results.ranks:
        write_csv(folder / "plots/study_rank.csv", RankPoint._fields, results.ranks)
    if results.curves:
        header = ["sweep", "method", "parameter", "value", "task", "score", "stderr"]
        write_csv(folder / "plots/study_sweeps.csv", header, [line for curve in results.curves for line in curve.lines])
    if results.matched.curves:
        write_csv(folder / "plots/study_budgets.csv", results.matched.header, results.matched.lines)
    if results.ablations:
        lines = [line for each in results.ablations for line in each.lines]
        write_csv(folder / "plots/study_ablations.csv", results.ablations[0].header, lines)


def summary(rows: Sequence[Row]) -> dict[str, dict[str, Any]]:
    """Give each entry's scores for `dvc metrics`: only what depends on nothing but the inputs, so no times."""
    return {
        row.entry: {
            **_by_metric(row.scores.by_task),
            **{name: value for name, value in _measures(row).items() if name not in ("wall_s", "peak_rss_bytes")},
            **({} if row.scores.spread is None else {"spread": row.scores.spread}),
            **({"unseen": _by_metric(row.scores.unseen)} if row.scores.unseen else {}),
        }
        for row in rows
    }


def _by_metric(scores: Mapping[str, Score]) -> dict[str, dict[str, float]]:
    """Return each task's value under the name of its metric."""
    found: dict[str, dict[str, float]] = {}
    for task, score in scores.items():
        found.setdefault(score["metric"], {})[task] = score["value"]
    return found


def _identity(row: Row) -> tuple[str, ...]:
    return row.entry, row.about.name, " and ".join(row.needs), row.about.family, row.group, row.data_title


def _measures(row: Row) -> dict[str, float | None]:
    scores = row.scores
    values = (
        scores.mean,
        scores.normalised,
        scores.drop_rate,
        row.amr,
        *(scores.profile[key] for key in ("wall_s", "peak_rss_bytes")),
    )
    return dict(zip(MEASURES, values, strict=True))


def write_csv(path: Path, header: Sequence[str], lines: Iterable[Sequence[Any]]) -> None:
    """Write a table: None and NaN become empty cells."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(header)
        writer.writerows([None if isinstance(v, float) and isnan(v) else v for v in line] for line in lines)
