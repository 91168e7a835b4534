"""Plots of curves: scores over a parameter's values, and measures over the depth, with a panel per kind of layer."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, inf, log
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from merganser.report.formats import ONCE, panels, written
from merganser.report.plots import COLOURS, INK, MUTED, canvas, log_scale, one_legend, to_svg
from merganser.report.scores import MeanScore

WIDE = 20  # times the smallest value, beyond which values stand on a logarithmic axis
NEAR = 0.055  # of an axis's length, below which two labels would touch
RELATIVE = "% of the individual models"  # on an axis


@dataclass(frozen=True, kw_only=True)
class CurvePoint(MeanScore):
    """The scores of an entry with one value of the parameter."""

    value: Any

    @property
    def shown(self) -> str:
        """Return the value as it stands in params.yaml."""
        return written(self.value)


@dataclass(frozen=True)
class Curve:
    """One curve: its points by ascending value if the values are numbers, else in the order of params.yaml."""

    name: str
    method: str
    parameter: str
    points: list[CurvePoint]
    relative: bool = False  # to the individual models

    @property
    def tasks(self) -> list[str]:
        """List the tasks that have scores."""
        return self.points[0].tasks

    @property
    def places(self) -> list[float]:
        """Return each point's place on the axis: its value if all are numbers, else its index."""
        values = [point.value for point in self.points]
        return [float(value) for value in values] if all(map(is_number, values)) else [*map(float, range(len(values)))]

    @property
    def lines(self) -> Iterator[list[Any]]:
        """Yield the lines of a table: each value's mean, then its score on each task."""
        for point in self.points:
            about = [self.name, self.method, self.parameter, point.shown]
            yield [*about, "mean", point.mean, point.error]
            for task, score in point.by_task.items():
                yield [*about, task, score["value"], score["stderr"]]

    def as_json(self) -> list[dict[str, Any]]:
        """Return all numbers as plain data."""
        return [{"value": p.value, "score": p.mean, "stderr": p.error, "tasks": p.by_task} for p in self.points]


def is_number(value: Any) -> bool:
    """Tell whether a value has a place on an axis."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def against_values(curve: Curve, ylabel: str) -> str:
    """Plot the mean score over a parameter's values with a band of one standard error, and each task as a thin line."""
    figure, axes = canvas(5.2, 3.4)
    places, means = curve.places, [100 * point.mean for point in curve.points]
    for task in curve.tasks:
        heights = [100 * point.by_task[task]["value"] for point in curve.points]
        axes.plot(places, heights, color=MUTED, linewidth=0.6, marker="o", markersize=1.5, label="one task")
    errors = [100 * (point.error or 0) for point in curve.points]
    low, high = ([m + sign * e for m, e in zip(means, errors, strict=True)] for sign in (-1, 1))
    axes.fill_between(places, low, high, color=COLOURS["single"], alpha=0.2, linewidth=0)
    axes.plot(places, means, color=COLOURS["single"], linewidth=1.9, marker="o", markersize=4, label="mean over tasks")
    wide = min(places) > 0 and max(places) / min(places) > WIDE and log_scale(axes, "x", places)
    shown = legible([point.shown for point in curve.points], [*map(log, places)] if wide else places)
    axes.set_xticks(places, shown)
    axes.minorticks_off()
    axes.set(xlabel=f"{curve.parameter} of {curve.method}", ylabel=ylabel)
    axes.grid(axis="y")
    one_legend(figure, axes)
    return to_svg(figure)


def legible(labels: Sequence[str], places: Sequence[float]) -> list[str]:
    """Blank labels that would overlap the one before; `places`: their ascending places on the axis.

    >>> legible(["0.05", "0.1", "0.2", "1"], [0.05, 0.1, 0.2, 1])
    ['0.05', '', '0.2', '1']
    """
    shown, last = [], -inf
    for label, place in zip(labels, places, strict=True):
        apart = place - last >= NEAR * (places[-1] - places[0])
        shown.append(label if apart else "")
        last = place if apart else last
    return shown


WIDTH, HEIGHT = 10.8, 2.1  # inches: of the page, of a panel
ABREAST = 5


class LineStyle(NamedTuple):
    """The style of a measure's line."""

    measure: str
    label: str
    colour: str = COLOURS["single"]
    style: str = "-"


def over_depth(
    lines: Sequence[tuple[LineStyle, Mapping[str, float]]], names: Sequence[str], label: str, log: bool = False
) -> str:
    """Plot lines over the layers of each kind, with one scale for all panels."""
    kinds = panels(names)
    abreast = min(ABREAST, len(kinds))
    down = ceil(len(kinds) / abreast)
    figure = Figure(figsize=(WIDTH, HEIGHT * down + 0.35), layout="constrained")
    grid = figure.subplots(down, abreast, sharey=True, squeeze=False).ravel().tolist()
    for axes, panel in zip(grid, kinds, strict=False):
        for line, by_layer in lines:
            values = [by_layer[layer] for layer in panel.layers]
            joined = "None" if panel.title == ONCE else line.style
            axes.plot(
                values, color=line.colour, linestyle=joined, linewidth=1.5, marker="o", markersize=3, label=line.label
            )
        _dress(axes, panel.title, panel.ticks)
        if panel.title != ONCE:  # whose ticks are names
            axes.set_xlabel("block", fontsize=7.5, color=MUTED, labelpad=1)
    for axes in grid[len(kinds) :]:
        axes.set_visible(False)
    for axes in grid[::abreast]:
        axes.set_ylabel(label)
    drawn = [value for _, by_layer in lines for value in by_layer.values()]
    if log and log_scale(grid[0], "y", drawn):
        low, high = grid[0].get_ylim()
        if high > 100 * low:  # two powers of ten at least are marked
            grid[0].minorticks_off()
    if len(lines) > 1:
        handles, labels = grid[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=len(lines))
    return to_svg(figure)


def _dress(axes: Axes, title: str, ticks: Sequence[str]) -> None:
    axes.set_title(title, fontsize=8.5, color=INK, loc="left")
    step = ceil(len(ticks) / 12)
    turned: dict[str, Any] = {"rotation": 40, "ha": "right", "rotation_mode": "anchor"} if title == ONCE else {}
    axes.set_xticks(range(0, len(ticks), step), ticks[::step], **turned)
    axes.set_xlim(-0.4, len(ticks) - 0.6)
    axes.tick_params(labelsize=8)
    axes.tick_params(axis="y", labelcolor=MUTED)
    axes.grid(axis="y")
