"""Confusion matrices: what the best entry with one model answers, by the examples' labels."""

from collections.abc import Sequence
from math import ceil
from pathlib import Path
from typing import NamedTuple

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from merganser.evaluation.examples import Results, read_results
from merganser.report.heatmaps import Shades, fill_cells
from merganser.report.measured import Grid
from merganser.report.rows import Row, best, in_group
from merganser.report.style import INK, MUTED, STYLE, to_svg

MOST = 64  # classes: cells of more are too small to be seen
ABREAST, SIDE = 4, 2.7  # panels in a row, inches of each


class Confusions(NamedTuple):
    """An entry's confusion matrices: of each task's label (row), the share of examples answered so (column)."""

    entry: str | None
    by_task: dict[str, Grid]


def read_confusions(rows: Sequence[Row], examples: Path) -> Confusions:
    """Read those of the best entry with one model; tasks without classes, or with more than 64, are left out."""
    chosen = best(in_group(list(rows), "single"))
    if chosen is None:
        return Confusions(None, {})
    found = {}
    for task in chosen.scores.by_task:
        shares = confusion(read_results(examples / chosen.entry / f"{task}.safetensors"))
        if shares is not None:
            found[task] = shares
    return Confusions(chosen.entry, found)


def confusion(results: Results) -> Grid | None:
    """Return the shares (C, C) of C classes' examples by answer; a row without examples is NaN. None of no classes.

    >>> confusion(Results(prediction=np.array([0, 1, 1]), label=np.array([0, 0, 1])))
    array([[0.5, 0.5],
           [0. , 1. ]])
    """
    label, prediction = results.label, results.prediction
    if label is None or prediction is None or label.dtype.kind == "f" or prediction.dtype.kind == "f" or not len(label):
        return None
    classes = np.unique(np.concatenate([label, prediction]))
    if len(classes) > MOST:
        return None
    counts = np.zeros((len(classes), len(classes)))
    np.add.at(counts, (np.searchsorted(classes, label), np.searchsorted(classes, prediction)), 1)
    totals = counts.sum(1, keepdims=True)
    return np.divide(counts, totals, out=np.full_like(counts, np.nan), where=totals > 0)


def draw_confusions(found: Confusions) -> dict[str, str]:
    """Draw a panel for each task, shaded from 0 to 1; return SVG text by name, empty where there is none."""
    if not found.by_task:
        return {}
    abreast = min(ABREAST, len(found.by_task))
    down = ceil(len(found.by_task) / abreast)
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(SIDE * abreast, (SIDE + 0.25) * down), layout="constrained")
        grid = figure.subplots(down, abreast, squeeze=False).ravel().tolist()
        for axes, (task, shares) in zip(grid, found.by_task.items(), strict=False):
            _draw(axes, task, shares)
        for axes in grid[len(found.by_task) :]:
            axes.set_visible(False)
        return {"confusions": to_svg(figure)}


def _draw(axes: Axes, task: str, shares: Grid) -> None:
    fill_cells(axes, np.where(shares > 0, shares, np.nan), Shades(0.0, 1.0))
    axes.set(xticks=[], yticks=[])
    axes.set_title(f"{task}, {len(shares)} classes", fontsize=8.5, color=INK, loc="left")
    axes.set_xlabel("answer", fontsize=7.5, color=MUTED)
    axes.set_ylabel("label", fontsize=7.5, color=MUTED)
