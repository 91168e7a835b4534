"""The scores of every entry on every task, by family, with each task's baselines without a model."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from merganser.evaluation.examples import Results, read_results
from merganser.evaluation.metrics import METRICS
from merganser.evaluation.scoring import by_data_set
from merganser.measures.significance import ROUNDING
from merganser.report.comparison import Comparison
from merganser.report.formats import Table, Tables, title_of
from merganser.report.rows import GROUPS, Row, best_cells, by_family, sampling_error, with_data
from merganser.report.scores import values_of
from merganser.report.sections import TASK_NUMBER, Section

IDENTITY = ("entry", "method", "reads", "family", "group", "data")


class Baseline(NamedTuple):
    """A task's scores without a model; None if its metric compares numbers or texts instead of classes."""

    task: str
    classes: int | None = None  # that occur among the labels
    chance: float | None = None  # the expected score of uniform draws
    majority: float | None = None  # of always the commonest label


def read_baselines(comparison: Comparison) -> list[Baseline]:
    """Return the baselines of each task, from the labels of an entry's examples."""
    row = comparison.rows[0]
    folder, metrics = comparison.paths.EXAMPLES / row.entry, row.scores.metrics.items()
    return [baseline(task, metric, read_results(folder / f"{task}.safetensors")) for task, metric in metrics]


def baseline(task: str, metric: str, results: Results) -> Baseline:
    """Return a task's scores without a model.

    By chance, each of K classes is predicted with probability 1/K whatever the label: the metric's value on all
    pairs of a label and a class.

    >>> baseline("a", "accuracy", Results(np.ones(4), np.zeros(4, int), np.array([0, 1, 1, 2])))[1:]
    (3, 0.3333333333333333, 0.5)
    """
    labels = results.label
    if labels is None or labels.dtype.kind == "f" or metric not in METRICS:
        return Baseline(task)
    classes, counts = np.unique(labels, return_counts=True)
    compute = METRICS[metric].compute
    pairs = np.tile(classes, len(classes)), np.repeat(classes, len(classes))
    chance = compute(*pairs, np.repeat(counts / len(classes), len(classes)))
    majority = compute(np.full_like(labels, classes[counts.argmax()]), labels, None)
    return Baseline(task, len(classes), float(chance), float(majority))


def baseline_mean(baselines: Sequence[Baseline], name: str) -> float | None:
    """Return the mean over the tasks; None if a task has none."""
    values = [getattr(each, name) for each in baselines]
    return None if None in values else float(np.mean(values))


def tables(comparison: Comparison) -> Tables:
    """Return every score and cost in one line per entry, and in the formats of `dvc plots`."""
    rows = comparison.rows
    scores = [(row.entry, task, score) for row in rows for task, score in row.scores.by_task.items()]
    keys = ("metric", "value", "stderr", "count", "spread")
    costs = ("mean", "normalised_score", "amr", "wall_s")
    numbers = {task: number for number, task in enumerate(comparison.tasks, start=1)}
    results = _results(comparison)
    return {
        "results.csv": results,
        "results.parquet": results,
        "baselines.csv": (Baseline._fields, comparison.of(read_baselines)),
        **_data_sets(rows),
        "plots/scores.csv": (
            ["entry", "task", *keys, TASK_NUMBER],
            [[entry, task, *map(score.get, keys), numbers[task]] for entry, task, score in scores],
        ),
        "plots/cost.csv": (["entry", *costs], [[row.entry, *(row.measures[name] for name in costs)] for row in rows]),
    }


def _results(comparison: Comparison) -> Table:
    """Return one line per entry; if scores are not of all examples, each line says why."""
    rows, tasks, partial = comparison.rows, comparison.tasks, comparison.params.evaluation.partial
    header = [*IDENTITY, *tasks, *rows[0].measures, "stderr", "spread", "forwards", "backwards", "before_s"]
    unseen, marked = list(rows[0].scores.unseen), [partial] if partial else []
    header += ["unseen", *(f"unseen_{task}" for task in unseen)] if unseen else []
    header += ["partial"] if marked else []
    lines = [
        [
            *(row.entry, row.about.name, " and ".join(row.needs), row.about.family, row.group, row.data_title),
            *(row.scores.values[task] for task in tasks),
            *row.measures.values(),
            *(row.scores.error, row.scores.spread),
            *row.spent.values(),
            row.before_s,
            *([row.scores.unseen_mean, *values_of(row.scores.unseen).values()] if unseen else []),
            *marked,
        ]
        for row in rows
    ]
    return header, lines


def _data_sets(rows: Sequence[Row]) -> Tables:
    """Return the value on each data set of tasks that are groups of them."""
    lines = [
        [row.entry, task, name, row.scores.by_task[task]["metric"], value]
        for row in rows
        for (task, name), value in by_data_set(row.scores.by_task).items()
    ]
    return {"data_sets.csv": (["entry", "task", "data_set", "metric", "value"], lines)} if lines else {}


def page(comparison: Comparison) -> dict[str, Any]:
    """Return the rows by family, and the marks of their cells."""
    rows, baselines = comparison.shown, comparison.of(read_baselines)
    return {
        "with_data": with_data(rows),
        "groups": GROUPS,
        "families": by_family(rows),
        "best": best_cells(comparison.rows, comparison.tasks),
        "shade": _shades(rows),
        "titles": {task: title_of(metric) for task, metric in rows[0].scores.metrics.items()},
        "error": sampling_error(rows),
        "verdicts": comparison.significance.verdicts,
        "below": below_chance(rows, baselines),
        "baselines": {
            name: [baseline_mean(baselines, name), *(getattr(each, name) for each in baselines)]
            for name in ("chance", "majority")
            if any(getattr(each, name) is not None for each in baselines)
        },
    }


def below_chance(rows: Sequence[Row], baselines: Sequence[Baseline]) -> dict[tuple[str, str], float]:
    """Return the chance level for each score below it, and for each `mean` below that of all tasks."""
    chances = {each.task: each.chance for each in baselines} | {"mean": baseline_mean(baselines, "chance")}
    values = {(row.entry, name): value for row in rows for name, value in row.scores.values.items()}
    values |= {(row.entry, "mean"): row.scores.mean for row in rows}
    known = {key: chances[key[1]] for key in values}
    return {key: chance for key, chance in known.items() if chance is not None and values[key] < chance - ROUNDING}


def _shades(rows: Sequence[Row]) -> dict[tuple[str, str], int]:
    """Return each value's place between the lowest (0) and the highest (100) of its task."""
    shades: dict[tuple[str, str], int] = {}
    for task in rows[0].scores.by_task:
        column = [row.scores.values[task] for row in rows]
        low, width = min(column), (max(column) - min(column)) or 1
        shades |= {(row.entry, task): round(100 * (row.scores.values[task] - low) / width) for row in rows}
    return shades


SECTION = Section(tables=tables, page=page)
