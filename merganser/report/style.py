"""The look of the plots, and their way to SVG text: the same bytes for the same numbers.

Colours come from one table, so that the page can put its own variables in their place and follow a dark theme.
"""

import io
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

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


def canvas(width: float, height: float) -> tuple[Figure, Axes]:
    """Make a figure of one panel, in inches."""
    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.add_subplot()


def to_svg(figure: Figure) -> str:
    """Write a figure as SVG text. To be called inside `matplotlib.rc_context(STYLE)`, as all that draws."""
    buffer = io.StringIO()
    drawn = FigureCanvasSVG(figure)
    if engine := figure.get_layout_engine():  # here, as `savefig` would draw all of it one time more for that
        engine.execute(figure)
        figure.set_layout_engine("none")
    drawn.print_svg(buffer, metadata={"Date": None})
    return buffer.getvalue()


def one_legend(figure: Figure, axes: Axes) -> None:
    """Name each kind of line once."""
    handles = dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=3)
