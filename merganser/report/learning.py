"""The losses of learned entries, step by step."""

from collections.abc import Sequence
from itertools import cycle

from matplotlib.ticker import MaxNLocator

from merganser.report.rows import Row
from merganser.report.style import COLOURS, OTHERS, canvas, to_svg

LINES = [(colour, style) for style in ("-", "--", ":") for colour in (COLOURS["single"], COLOURS["parts"], *OTHERS)]


def learned_rows(rows: Sequence[Row]) -> list[Row]:
    """Return the entries that apply learned values."""
    return [row for row in rows if "learned" in row.scores.profile]


def learning_curves(rows: Sequence[Row]) -> str:
    """Draw the loss on the fixed examples against the step, and mark the values that each entry was merged by."""
    figure, axes = canvas(5.2, 3.4)
    for row, (colour, style) in zip(learned_rows(rows), cycle(LINES), strict=False):
        trace = row.scores.profile["learned"]
        steps, losses = zip(*((check["step"], check["loss"]) for check in trace["checks"]), strict=True)
        axes.plot(steps, losses, style, color=colour, linewidth=1.4, label=row.entry)
        best = steps.index(trace["best_step"])
        axes.plot(steps[best], losses[best], "o", color=colour, markersize=4)
    axes.set(xlabel="step", ylabel="loss on the fixed examples")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid()
    axes.legend()
    return to_svg(figure)
