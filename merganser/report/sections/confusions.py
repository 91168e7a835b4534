"""Confusion matrices: the answers of the best entry with one model, by the examples' labels."""

from collections.abc import Sequence
from math import ceil
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from merganser.evaluation.examples import Results, read_results
from merganser.outputs import read_json
from merganser.report.comparison import Comparison
from merganser.report.formats import Tables, Wording
from merganser.report.heatmaps import Shades, fill_cells
from merganser.report.plots import INK, MUTED, to_svg
from merganser.report.rows import best, in_group
from merganser.report.scores import Grid
from merganser.report.sections import Section

MOST = 64  # classes: cells of more are too small to be seen
NAMED, LONG = 20, 14  # classes whose names have room, and letters of a name
NO_CLASS = "no class"  # an answer outside the classes
ABREAST, SIDE = 4, 2.7  # panels in a row, inches of each


class Confusions(NamedTuple):
    """An entry's confusion matrices: for each task and label (row), the share of examples with each answer (column)."""

    entry: str
    by_task: dict[str, Grid]
    classes: dict[str, list[str]]  # each task's, by the rows' order


def read(comparison: Comparison) -> Confusions | None:
    """Read those of the best entry with one model; tasks without classes, or with more than 64, are left out."""
    chosen = best(in_group(comparison.rows, "single"))
    if chosen is None:
        return None
    folder = comparison.paths.EXAMPLES / chosen.entry
    path, confusions = comparison.paths.CLASS_NAMES, Confusions(chosen.entry, {}, {})
    names = read_json(path) if path.is_file() else {}  # results of earlier versions have none: numbers take their place
    for task in chosen.scores.by_task:
        results = read_results(folder / f"{task}.safetensors")
        shares = confusion(results)
        if shares is not None:
            confusions.by_task[task] = shares
            confusions.classes[task] = [class_name(names.get(task, []), int(label)) for label in present(results)]
    return confusions if confusions.by_task else None


def class_name(names: Sequence[str], label: int) -> str:
    """Return the name of a class; its number if the classes have no names."""
    return NO_CLASS if label < 0 else names[label] if label < len(names) else str(label)


def present(results: Results) -> NDArray[Any]:
    """Return the classes that occur among the labels and the answers, in order."""
    known = [each for each in (results.label, results.prediction) if each is not None]
    return np.unique(np.concatenate(known))


def confusion(results: Results) -> Grid | None:
    """Return the shares (C, C) of C classes' examples by answer; a row without examples is NaN. None without classes.

    >>> confusion(Results(prediction=np.array([0, 1, 1]), label=np.array([0, 0, 1])))
    array([[0.5, 0.5],
           [0. , 1. ]])
    """
    label, prediction = results.label, results.prediction
    if label is None or prediction is None or label.dtype.kind == "f" or prediction.dtype.kind == "f" or not len(label):
        return None
    classes = present(results)
    if len(classes) > MOST:
        return None
    counts = np.zeros((len(classes), len(classes)))
    np.add.at(counts, (np.searchsorted(classes, label), np.searchsorted(classes, prediction)), 1)
    totals = counts.sum(1, keepdims=True)
    return np.divide(counts, totals, out=np.full_like(counts, np.nan), where=totals > 0)


def tables(confusions: Confusions) -> Tables:
    """Return each task's non-zero shares, with the classes' numbers and names."""
    lines = [
        [
            confusions.entry,
            task,
            label,
            answer,
            float(shares[label, answer]),
            *(confusions.classes[task][n] for n in (label, answer)),
        ]
        for task, shares in confusions.by_task.items()
        for label, answer in np.argwhere(shares > 0).tolist()
    ]
    return {"confusions.csv": (["entry", "task", "label", "answer", "share", "label_name", "answer_name"], lines)}


def plots(confusions: Confusions, wording: Wording) -> dict[str, str]:
    """Plot a panel for each task, shaded from 0 to 1."""
    abreast = min(ABREAST, len(confusions.by_task))
    down = ceil(len(confusions.by_task) / abreast)
    figure = Figure(figsize=(SIDE * abreast, (SIDE + 0.25) * down), layout="constrained")
    grid = figure.subplots(down, abreast, squeeze=False).ravel().tolist()
    for axes, (task, shares) in zip(grid, confusions.by_task.items(), strict=False):
        _draw(axes, task, shares, confusions.classes[task])
    for axes in grid[len(confusions.by_task) :]:
        axes.set_visible(False)
    return {"confusions": to_svg(figure)}


def _draw(axes: Axes, task: str, shares: Grid, classes: Sequence[str]) -> None:
    fill_cells(axes, np.where(shares > 0, shares, np.nan), Shades(0.0, 1.0))
    if len(classes) <= NAMED:
        places, names = (
            np.arange(len(classes)) + 0.5,
            [name if len(name) <= LONG else f"{name[:LONG]}…" for name in classes],
        )
        look: dict[str, Any] = {"fontsize": 6.5, "parse_math": False}  # classes may be prices: $5, $10
        axes.set_xticks(places, names, rotation=60, ha="right", rotation_mode="anchor", **look)
        axes.set_yticks(places, names, **look)
    else:
        axes.set(xticks=[], yticks=[])
    count = len(classes) - classes.count(NO_CLASS)
    axes.set_title(f"{task}, {count} classes", fontsize=8.5, color=INK, loc="left")
    axes.set_xlabel("answer", fontsize=7.5, color=MUTED)
    axes.set_ylabel("label", fontsize=7.5, color=MUTED)


TEMPLATE = (
    '    <figure class="full">{{ plots.confusions }}<figcaption>Answers of {{ confusions.entry }}, the best entry with '
    "one model: each row is a class, each column an answer, in the order of the classes. "
    "{% set apart = params.measured | reject('in', confusions.by_task) | join(', ') %}"
    "{% if apart %}Left out: {{ apart }} (no classes, more than 64, or means over the seeds). {% endif %}"
    'Shares: <a href="confusions.csv">confusions.csv</a>.</figcaption></figure>'
)
SECTION = Section(read=read, tables=tables, plots=plots, inside="glance", template=TEMPLATE)
