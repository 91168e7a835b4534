"""The style of the plots, their labels, and their output as SVG text: the same bytes for the same numbers.

Labels stand next to their points and never overlap; their positions are in points (1/72 inch). Colours come from one
table, so that the page can replace them by its own variables and follow a dark theme.
"""

import io
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from itertools import pairwise
from math import isfinite
from typing import Any, Literal, NamedTuple

import numpy as np
from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from scipy.optimize import isotonic_regression

INK, MUTED, LINE = "#1d2430", "#667085", "#d9dee6"
COLOURS = {"reference": "#8a94a3", "single": "#2b6cb0", "parts": "#c2571a"}
OTHERS = ("#2f8f6b", "#8a56b8")
PALETTE = (COLOURS["single"], COLOURS["parts"], *OTHERS, COLOURS["reference"])
LINES = ("-", "--", ":")  # once all colours of the palette are taken
# of heat maps, positive and negative: the colour-blind tell them apart; a dark page has them deeper than the lines
HEAT = ("#2b6cb1", "#c2571b")
# what the page writes in place of each colour
VARIABLES = {
    INK: "var(--ink)",
    MUTED: "var(--muted)",
    LINE: "var(--line)",
    **{colour: f"var(--{group})" for group, colour in COLOURS.items()},
    OTHERS[0]: "var(--third)",
    OTHERS[1]: "var(--fourth)",
    HEAT[0]: "var(--heat)",
    HEAT[1]: "var(--heat-negative)",
}
STYLE: Any = {
    "svg.hashsalt": "merganser",
    "svg.fonttype": "none",
    "font.size": 9,
    "figure.facecolor": "none",
    "figure.edgecolor": "none",
    "axes.facecolor": "none",
    "text.color": INK,
    "axes.labelcolor": MUTED,
    "axes.edgecolor": LINE,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.titley": 1.0,  # where it would stand, as no ticks stand above; else all labels are measured again for it
    "grid.color": LINE,
    "grid.linewidth": 0.7,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": MUTED,
    "ytick.labelcolor": INK,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "legend.frameon": False,
    "legend.fontsize": 8,
}


def plot_style() -> AbstractContextManager[None]:
    """Return a context in which plots have this style, whatever a matplotlibrc of the user's or in the folder says."""
    return style.context(["default", STYLE])


def log_scale(axes: Axes, axis: Literal["x", "y"], values: Iterable[float]) -> bool:
    """Use a logarithmic scale if an axis has only positive values, and at least one; tell whether it did."""
    shown = [value for value in values if isfinite(value)]
    if not shown or min(shown) <= 0:
        return False
    axes.set(**{f"{axis}scale": "log"})
    return True


def canvas(width: float, height: float) -> tuple[Figure, Axes]:
    """Create a figure with one panel, in inches."""
    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.add_subplot()


def to_svg(figure: Figure) -> str:
    """Return a figure as SVG text. Call it, like all plotting, inside `plot_style()`."""
    buffer = io.StringIO()
    drawn = FigureCanvasSVG(figure)
    if engine := figure.get_layout_engine():  # here, as `savefig` would draw all of it one time more for that
        engine.execute(figure)
        figure.set_layout_engine("none")
    drawn.print_svg(buffer, metadata={"Date": None})
    return buffer.getvalue()


def one_legend(figure: Figure, axes: Axes) -> None:
    """List each kind of line once in the legend."""
    handles = dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=3)


LABEL_HEIGHT = 9.5  # height of a label
GAP = 7.0  # between a point and its label
COLUMN = 12.0  # points closer than this stand in one column
SHIFTS = (0, 1, -1, 2, -2, 3, -3, 4, -4, 5, -5, 6, -6)  # lines a label may move by

Box = tuple[float, float, float, float]  # left, bottom, right, top


class Position(NamedTuple):
    """A label's left edge and the height of its middle."""

    x: float
    y: float


def place_labels(
    points: Sequence[tuple[float, float]],
    widths: Sequence[float],
    right: float,
    others: Sequence[tuple[float, float]] = (),
    line: Sequence[tuple[float, float]] = (),
) -> list[Position]:
    """Place one label per point, as near as its neighbours and the right edge allow; return them in the points' order.

    `others`: points without a label, which no label may cover either. `line`: the corners of a line of horizontal and
    vertical pieces, which may strike through no label.
    """
    targets = _targets(points)
    taken = [(x - 4, y - 4, x + 4, y + 4) for x, y in [*points, *others]]
    for (x, y), (to_x, to_y) in pairwise(line):
        taken.append((min(x, to_x) - 1, min(y, to_y) - 1, max(x, to_x) + 1, max(y, to_y) + 1))
    positions: dict[int, Position] = {}
    for index in sorted(range(len(points)), key=lambda i: -targets[i]):
        positions[index] = _free_position(points[index], targets[index], widths[index], right, taken)
        taken.append(_box(positions[index], widths[index]))
    return [positions[index] for index in range(len(points))]


def _free_position(
    point: tuple[float, float], height: float, width: float, right: float, taken: Sequence[Box]
) -> Position:
    gap = GAP if abs(height - point[1]) < LABEL_HEIGHT / 2 else 3 * GAP  # room for the line from a label that was moved
    sides = [side for side in (point[0] + gap, point[0] - gap - width) if side >= 0 and side + width <= right]
    candidates = [Position(side, height + step * LABEL_HEIGHT) for step in SHIFTS for side in sides or [point[0] + gap]]
    free = [position for position in candidates if not any(_overlap(_box(position, width), box) for box in taken)]
    above = (position for position in free if position.y >= LABEL_HEIGHT / 2)  # the axis below
    return next(above, next(iter(free), candidates[0]))


def _box(position: Position, width: float) -> Box:
    return position.x, position.y - LABEL_HEIGHT / 2, position.x + width, position.y + LABEL_HEIGHT / 2


def _overlap(a: Box, b: Box) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def _targets(points: Sequence[tuple[float, float]]) -> list[float]:
    """Return each label's preferred height: its point's, spread out if points share a column."""
    heights = [y for _, y in points]
    for column in _columns([x for x, _ in points]):
        for index, height in zip(column, spread([heights[i] for i in column], LABEL_HEIGHT), strict=True):
            heights[index] = height
    return heights


def _columns(values: Sequence[float]) -> list[list[int]]:
    columns: list[list[int]] = []
    for index in sorted(range(len(values)), key=lambda i: values[i]):
        if columns and values[index] - values[columns[-1][0]] < COLUMN:
            columns[-1].append(index)
        else:
            columns.append([index])
    return columns


def spread(values: Sequence[float], gap: float) -> list[float]:
    """Move values apart by the least that makes neighbours `gap` apart; their order stays."""
    order, apart = np.argsort(values, kind="stable"), gap * np.arange(len(values))
    placed = np.empty(len(values))
    placed[order] = isotonic_regression(np.array(values)[order] - apart).x + apart
    return placed.tolist()
