"""Grids of numbers as cells shaded over the grid's own range: one colour by opacity, which follows the page's theme."""

import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.colors import to_rgba

from merganser.report.formats import short_names
from merganser.report.plots import HEAT, INK, MUTED, canvas, to_svg
from merganser.report.scores import Grid, MergeMeasures, mean_over

POSITIVE, NEGATIVE = HEAT
LIGHTEST, DEEPEST = 0.04, 0.65  # opacity of the ends of the range: the ink on it stays readable in both themes
WRITTEN = 16  # columns up to which cells have room for their number
FULL = 10.8  # inches: the width of the page
KEY = 1.5  # rows that the key takes
STEPS = 5  # shades of the key
KEY_START, KEY_STEP = 0.14, 0.05  # of the width: the room of the lowest number, and of a shade


class Shades(NamedTuple):
    """The shades of numbers from `low` to `high`; with both signs, by distance from 0."""

    low: float
    high: float

    def colour(self, value: float) -> tuple[float, float, float, float]:
        """Return a number's colour and opacity."""
        if self.low < 0 < self.high:
            return to_rgba(NEGATIVE if value < 0 else POSITIVE, self._opacity(abs(value) / max(-self.low, self.high)))
        width = self.high - self.low
        depth = (value - self.low) / width if width else 1.0
        return to_rgba(*((NEGATIVE, self._opacity(1 - depth)) if self.high <= 0 else (POSITIVE, self._opacity(depth))))

    def _opacity(self, depth: float) -> float:
        return round(LIGHTEST + (DEEPEST - LIGHTEST) * depth, 3)


def between_tasks(grid: Grid, tasks: Sequence[str]) -> str:
    """Plot one number per pair of different tasks (T, T)."""
    apart = np.where(np.eye(len(tasks), dtype=bool), np.nan, grid)
    side = 1.3 + 0.42 * min(len(tasks), WRITTEN)
    figure, axes = canvas(max(side, 4.2), max(side - 0.5, 2.2) + 0.4)
    _cells(axes, apart, tasks, tasks)
    return to_svg(figure)


def entries_by_task(grid: Grid, entries: Sequence[str], tasks: Sequence[str]) -> str:
    """Plot one number per entry and task (E, T)."""
    figure, axes = canvas(5.2, 0.9 + 0.19 * (len(entries) + KEY))
    _cells(axes, grid, entries, tasks)
    return to_svg(figure)


def entries_by_layer(measured: MergeMeasures, entries: Sequence[str]) -> str:
    """Plot the tasks' mean alignment with each entry's merge in each matrix (E, L)."""
    means = [mean_over(measured.alignment(entry), axis=1) for entry in entries]
    names = short_names(measured.matrices)
    figure, axes = canvas(FULL, 0.6 + 0.19 * (len(entries) + KEY) + 0.07 * max(len(name) for name in names))
    _cells(axes, np.array(means), entries, names)
    return to_svg(figure)


def _cells(axes: Axes, grid: Grid, rows: Sequence[str], columns: Sequence[str]) -> None:
    """Plot a grid with its first row on top, and a key above; undefined cells stay empty."""
    known = [(y, x) for y in range(len(rows)) for x in range(len(columns)) if not np.isnan(grid[y, x])]
    key = _draw_key(axes, grid, len(columns)) if known else None  # a bar, and no row: it stands over no column
    if key:
        corners = [_corners(x, y, 1) for y, x in known]
        colours = [key.colour(float(grid[cell])) for cell in known]
        axes.add_collection(PolyCollection(corners, facecolors=colours, linewidths=0))
    if len(columns) <= WRITTEN:
        for y, x in known:
            _write(axes, float(grid[y, x]), x + 0.5, y)
    axes.set(xlim=(0, len(columns)), ylim=(len(rows), -KEY if key else 0))
    axes.set_yticks(np.arange(len(rows)) + 0.5, rows)
    axes.set_xticks(np.arange(len(columns)) + 0.5, columns, rotation=60, ha="right", rotation_mode="anchor")
    axes.tick_params(labelsize=8)
    axes.tick_params(axis="x", labelcolor=MUTED)
    for side in ("left", "bottom"):
        axes.spines[side].set_visible(False)


def fill_cells(axes: Axes, grid: Grid, shades: Shades) -> None:
    """Fill the cells of a grid, its first row on top, side by side and without numbers; NaN stays empty."""
    cells = [(y, x) for y, x in np.ndindex(*grid.shape) if not np.isnan(grid[y, x])]
    corners = [[(x, y), (x, y + 1), (x + 1, y + 1), (x + 1, y)] for y, x in cells]
    colours = [shades.colour(float(grid[cell])) for cell in cells]
    axes.add_collection(PolyCollection(corners, facecolors=colours, linewidths=0))
    axes.set(xlim=(0, grid.shape[1]), ylim=(grid.shape[0], 0), aspect="equal")


def _draw_key(axes: Axes, grid: Grid, columns: int) -> Shades:
    """Plot a bar of the shades, with the lowest number left of it and the highest right; return the shades."""
    shades = Shades(float(np.nanmin(grid)), float(np.nanmax(grid)))
    equal = shades.low == shades.high
    steps = [shades.low] if equal else np.linspace(shades.low, shades.high, STEPS)
    start, width = columns * KEY_START, columns * KEY_STEP
    low, high = 0.25 - KEY, 0.7 - KEY
    lefts = [start + place * width for place in range(len(steps))]
    corners = [[(x, low), (x + width, low), (x + width, high), (x, high)] for x in lefts]
    axes.add_collection(PolyCollection(corners, facecolors=[shades.colour(float(v)) for v in steps], linewidths=0))
    if not equal:
        _write(axes, shades.low, start - 0.3 * width, -KEY, "right")
    _write(axes, shades.high, lefts[-1] + 1.3 * width, -KEY, "left")
    return shades


def _corners(x: float, y: float, width: float) -> list[tuple[float, float]]:
    left, right = x + 0.04, x + width - 0.04
    return [(left, y + 0.06), (right, y + 0.06), (right, y + 0.94), (left, y + 0.94)]


def _write(axes: Axes, value: float, x: float, y: float, align: str = "center") -> None:
    axes.annotate(_written(value), (x, y + 0.52), ha=align, va="center", fontsize=7, color=INK)


def _written(value: float) -> str:
    """Format a number with two decimals and no leading zero."""
    return re.sub(r"^(-?)0\.", r"\1.", f"{value:.2f}").replace("-.00", ".00")
