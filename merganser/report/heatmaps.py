"""Grids of numbers as shaded cells. Shades are one colour's opacity, so that they follow the page's theme."""

import re
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.colors import to_rgba

from merganser.report.layers import short_names
from merganser.report.measured import Grid, Measured
from merganser.report.style import COLOURS, INK, MUTED, canvas, to_svg

POSITIVE, NEGATIVE = COLOURS["single"], COLOURS["parts"]
DEEPEST = 0.65  # opacity of the largest number: the ink on it stays readable in both themes
WRITTEN = 16  # columns up to which cells have room for their number
FULL = 10.8  # inches: the width of the page


def between_tasks(grid: Grid, tasks: Sequence[str]) -> str:
    """Draw one number per pair of different tasks (T, T); the darkest shade is the largest magnitude."""
    apart = np.where(np.eye(len(tasks), dtype=bool), np.nan, grid)
    side = 1.3 + 0.42 * min(len(tasks), WRITTEN)
    figure, axes = canvas(max(side, 4.2), max(side - 0.5, 2.2))
    _cells(axes, apart, float(np.nanmax(np.abs(apart), initial=0)), tasks, tasks)
    return to_svg(figure)


def entries_by_task(grid: Grid, entries: Sequence[str], tasks: Sequence[str], deepest: float) -> str:
    """Draw one number per entry and task (E, T), shaded up to `deepest`."""
    figure, axes = canvas(5.2, 0.9 + 0.19 * len(entries))
    _cells(axes, grid, deepest, entries, tasks)
    return to_svg(figure)


def entries_by_layer(measured: Measured, entries: Sequence[str]) -> str:
    """Draw the mean alignment of the tasks with each entry's merge in each matrix (E, L)."""
    means = [np.array([_mean(row) for row in measured.alignment(entry)]) for entry in entries]
    names = short_names(measured.matrices)
    figure, axes = canvas(FULL, 0.6 + 0.19 * len(entries) + 0.07 * max(len(name) for name in names))
    _cells(axes, np.array(means), 1.0, entries, names)
    return to_svg(figure)


def _mean(values: Grid) -> float:
    return float(np.nanmean(values)) if not np.isnan(values).all() else float("nan")


def _cells(axes: Axes, grid: Grid, deepest: float, rows: Sequence[str], columns: Sequence[str]) -> None:
    """Draw a grid with its first row on top; cells that are not defined stay empty."""
    known = [(y, x) for y in range(len(rows)) for x in range(len(columns)) if not np.isnan(grid[y, x])]
    corners = [
        [(x + 0.04, y + 0.06), (x + 0.96, y + 0.06), (x + 0.96, y + 0.94), (x + 0.04, y + 0.94)] for y, x in known
    ]
    colours = [_shade(float(grid[cell]), deepest) for cell in known]
    axes.add_collection(PolyCollection(corners, facecolors=colours, linewidths=0))
    if len(columns) <= WRITTEN:
        for y, x in known:
            axes.annotate(
                _written(float(grid[y, x])), (x + 0.5, y + 0.52), ha="center", va="center", fontsize=7, color=INK
            )
    axes.set(xlim=(0, len(columns)), ylim=(len(rows), 0))
    axes.set_yticks(np.arange(len(rows)) + 0.5, rows)
    axes.set_xticks(np.arange(len(columns)) + 0.5, columns, rotation=60, ha="right", rotation_mode="anchor")
    axes.tick_params(labelsize=8)
    axes.tick_params(axis="x", labelcolor=MUTED)
    for side in ("left", "bottom"):
        axes.spines[side].set_visible(False)


def _shade(value: float, deepest: float) -> tuple[float, float, float, float]:
    opacity = DEEPEST * min(1.0, abs(value) / deepest) if deepest else 0.0
    return to_rgba(NEGATIVE if value < 0 else POSITIVE, round(opacity, 3))


def _written(value: float) -> str:
    """Format with two decimals and no leading zero."""
    return re.sub(r"^(-?)0\.", r"\1.", f"{value:.2f}").replace("-.00", ".00")
