"""The plots as SVG text, the same bytes for the same numbers.

Colours come from one table, so that the page can put its own variables in their place and follow a dark theme.
"""

import io
import math
from collections.abc import Sequence
from typing import Any, cast

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.projections.polar import PolarAxes

from merganser.report.interference import LayerInterference, short_names
from merganser.report.labels import place_labels
from merganser.report.rows import Row, best, in_group

INK, MUTED, LINE = "#1d2430", "#667085", "#d9dee6"
COLOURS = {"reference": "#8a94a3", "single": "#2b6cb0", "parts": "#c2571a"}
FONT = 7.5  # of the names of points
LEADER = {"arrowstyle": "-", "color": MUTED, "linewidth": 0.5, "shrinkA": 0, "shrinkB": 3}
OTHERS = ("#2f8f6b", "#8a56b8")
# what the page writes in place of each colour
VARIABLES = {
    INK: "var(--ink)",
    MUTED: "var(--muted)",
    LINE: "var(--line)",
    **{colour: f"var(--{group})" for group, colour in COLOURS.items()},
    OTHERS[0]: "var(--third)",
    OTHERS[1]: "var(--fourth)",
}
STYLE: Any = {
    "svg.hashsalt": "merganser",
    "svg.fonttype": "none",
    "font.size": 9,
    "text.color": INK,
    "axes.labelcolor": MUTED,
    "axes.edgecolor": LINE,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
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


def make_plots(rows: Sequence[Row], layers: Sequence[LayerInterference], tasks: Sequence[str]) -> dict[str, str]:
    """Draw every plot whose numbers exist; return SVG text by name."""
    rows = list(rows)
    with matplotlib.rc_context(STYLE):
        plots = {"accuracy": accuracy_bars(rows, tasks)}
        if len(tasks) >= 3:
            plots["radar"] = radar(rows, tasks)
        if all(row.scores.normalised is not None for row in rows):
            plots["memory"] = against_memory(rows)
            plots["time"] = against_time(rows)
        if layers:
            plots["interference"] = interference_bars(layers)
    return plots


def accuracy_bars(rows: list[Row], tasks: Sequence[str]) -> str:
    """Draw each entry's mean accuracy as a bar, with one dot a task."""
    figure, axes = _canvas(5.2, 0.6 + 0.24 * len(rows))
    places = range(len(rows))
    axes.barh(places, [100 * r.scores.mean for r in rows], 0.66, color=[COLOURS[r.group] for r in rows], alpha=0.85)
    for place, row in zip(places, rows, strict=True):
        values = [100 * row.scores.accuracies[task] for task in tasks]
        axes.scatter(values, [place] * len(values), s=7, color=INK, alpha=0.45, linewidths=0, zorder=3)
        axes.annotate(
            f"{100 * row.scores.mean:.1f}", (101.5, place), va="center", fontsize=8, color=INK, annotation_clip=False
        )
    axes.set_yticks(places, [r.entry for r in rows])
    axes.set(xlim=(0, 100), ylim=(len(rows) - 0.4, -0.6), xlabel="accuracy, % (bar: mean; dots: tasks)")
    axes.grid(axis="x")
    axes.spines["left"].set_visible(False)
    return _svg(figure)


def radar(rows: list[Row], tasks: Sequence[str]) -> str:
    """Draw the references and the best entries of each group over the tasks."""
    figure = Figure(figsize=(4.6, 4.6), layout="constrained")
    axes = cast(PolarAxes, figure.add_subplot(projection="polar"))
    axes.set_theta_offset(math.pi / 2)
    axes.set_theta_direction(-1)
    angles = [2 * math.pi * i / len(tasks) for i in range(len(tasks))]
    for row, colour, line in _radar_lines(rows):
        values = [100 * row.scores.accuracies[task] for task in tasks]
        axes.plot(
            [*angles, angles[0]], [*values, values[0]], color=colour, linestyle=line, linewidth=1.6, label=row.entry
        )
    axes.set_xticks(angles, tasks)
    axes.tick_params(axis="x", labelcolor=INK, pad=8)
    axes.set_rlabel_position(180 / len(tasks))
    axes.set(ylim=(0, 100), yticks=[20, 40, 60, 80, 100])
    axes.tick_params(axis="y", labelcolor=MUTED, labelsize=7)
    axes.spines["polar"].set_visible(False)
    figure.legend(loc="outside lower center", ncols=3)
    return _svg(figure)


def _radar_lines(rows: list[Row]) -> list[tuple[Row, str, str]]:
    """Choose few enough lines to read: the references, the two best single models, the best with parts."""
    references = list(zip(in_group(rows, "reference"), (":", "--"), strict=False))
    lines = [(row, COLOURS["reference"], style) for row, style in references]
    ranked = sorted(in_group(rows, "single"), key=lambda row: -row.scores.mean)
    lines += list(zip(ranked[:2], (COLOURS["single"], OTHERS[0]), ("-", "-"), strict=False))
    with_parts = best(in_group(rows, "parts"))
    return [*lines, (with_parts, COLOURS["parts"], "-")] if with_parts else lines


def against_memory(rows: list[Row]) -> str:
    """Draw normalised accuracy against the additional memory rate."""
    figure, axes = _scatter_axes("additional memory per task, % of the merged parameters")
    values = [100 * row.amr for row in rows]
    axes.set_xscale("symlog", linthresh=1, linscale=0.6)
    axes.set_xlim(-0.12, max(400, 2 * max(values)))
    axes.set_xticks([0, 1, 10, 100], ["0", "1", "10", "100"])
    _scatter(axes, rows, values)
    return _svg(figure)


def against_time(rows: list[Row]) -> str:
    """Draw normalised accuracy against the merge's wall time."""
    figure, axes = _scatter_axes("wall time of the merge, s")
    values = [row.wall_s for row in rows]
    axes.set_xscale("log")
    axes.set_xlim(min(values) / 1.5, max(values) * 3)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.xaxis.set_minor_formatter("")
    axes.tick_params(axis="x", which="minor", size=0)
    _scatter(axes, rows, values)
    return _svg(figure)


def interference_bars(layers: Sequence[LayerInterference]) -> str:
    """Draw each layer's interference before and after TSV-M."""
    figure, axes = _canvas(5.2, 0.8 + 0.24 * len(layers))
    places = range(len(layers))
    axes.barh(places, [layer.before for layer in layers], 0.62, color=COLOURS["single"], alpha=0.85, label="tasks' own")
    after = [layer.after for layer in layers]
    axes.scatter(after, places, s=22, color=COLOURS["parts"], zorder=3, label="after TSV-M", clip_on=False)
    axes.set_yticks(places, short_names([layer.layer for layer in layers]))
    axes.tick_params(axis="y", pad=8)
    axes.set(ylim=(len(layers) - 0.4, -0.6), xlim=(0, None), xlabel="singular task interference")
    axes.grid(axis="x")
    axes.spines["left"].set_visible(False)
    axes.legend(loc="lower right")
    return _svg(figure)


def _canvas(width: float, height: float) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.add_subplot()


def _scatter_axes(label: str) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(5.2, 3.8))
    axes = figure.add_axes((0.1, 0.13, 0.88, 0.85))
    axes.set(xlabel=label, ylabel="normalised accuracy, %")
    axes.tick_params(axis="y", labelcolor=MUTED)
    axes.grid()
    return figure, axes


def _scatter(axes: Axes, rows: list[Row], values: list[float]) -> None:
    """Plot normalised accuracy against a cost whose scale is set, each point with its name beside it."""
    heights = [100 * (row.scores.normalised or 0) for row in rows]
    margin = 0.06 * (max(heights) - min(heights) or 1)
    axes.set_ylim(min(heights) - margin, max(heights) + margin)
    axes.scatter(values, heights, s=26, color=[COLOURS[row.group] for row in rows], zorder=3)
    scale = 72 / axes.figure.dpi
    pixels = axes.transData.transform(list(zip(values, heights, strict=True))) - axes.bbox.min
    points = [(float(x) * scale, float(y) * scale) for x, y in pixels]
    right = axes.bbox.width * scale
    places = place_labels(points, [0.58 * FONT * len(row.entry) for row in rows], right)
    for row, point, place in zip(rows, points, places, strict=True):
        moved = abs(place.y - point[1]) > 2
        axes.annotate(
            row.entry,
            point,
            xytext=place,
            xycoords="axes points",
            textcoords="axes points",
            fontsize=FONT,
            va="center",
            arrowprops=LEADER if moved else None,
        )


def _svg(figure: Figure) -> str:
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    return buffer.getvalue()
