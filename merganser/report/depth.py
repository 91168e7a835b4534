"""Measures over the depth of the network: one panel for each kind of layer, one line for each measure."""

from collections.abc import Mapping, Sequence
from math import ceil
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from merganser.report.layers import ONCE, panels
from merganser.report.style import COLOURS, INK, MUTED, to_svg

WIDTH, HEIGHT = 10.8, 2.1  # inches: of the page, of a panel
ABREAST = 5


class Line(NamedTuple):
    """How a measure is drawn."""

    measure: str
    label: str
    colour: str = COLOURS["single"]
    style: str = "-"


def over_depth(
    lines: Sequence[tuple[Line, Mapping[str, float]]], names: Sequence[str], label: str, log: bool = False
) -> str:
    """Draw lines over the layers of each kind, all panels on one scale."""
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
    for axes in grid[len(kinds) :]:
        axes.set_visible(False)
    for axes in grid[::abreast]:
        axes.set_ylabel(label)
    if log:
        grid[0].set_yscale("log")
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
