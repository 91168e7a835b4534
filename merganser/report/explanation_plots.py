"""The page of plots of measures beside the score that is lost."""

from math import ceil, isnan

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from merganser.report.depth import WIDTH, Line, over_depth
from merganser.report.explanation_points import Points
from merganser.report.explanations import TITLES, Explained, Explanations
from merganser.report.measured import Measured
from merganser.report.style import COLOURS, INK, MUTED, OTHERS, STYLE, to_svg

ABREAST, HEIGHT = 5, 2.05  # panels in a row, inches of each
FEW = 30  # points, up to which they are drawn large
LINES = {
    "merges": (
        Line("sar", "SAR"),
        Line("cosine_with_merge", "cosine", OTHERS[0]),
        Line("effective_rank_of_merge", "effective rank", COLOURS["parts"]),
    ),
    "subsets": (
        Line("interference", "STI"),
        Line("row_spaces", "row spaces", COLOURS["parts"]),
        Line("row_spaces_centred", "row spaces, centred", COLOURS["parts"], "--"),
        Line("agreement", "sign agreement", OTHERS[0]),
        Line("cosine", "cosine", OTHERS[1]),
        Line("effective_rank", "effective rank", COLOURS["reference"]),
    ),
}


def draw_explanations(explanations: Explanations, measured: Measured) -> dict[str, str]:
    """Draw each kind's points measure by measure, and correlations over the depth; return SVG text by name."""
    plots = {}
    overall = {(each.kind, each.measure): each for each in explanations.overall}
    with matplotlib.rc_context(STYLE):
        for points in explanations.points:
            found = {name: overall[points.kind, name] for name in points.measures}
            plots[f"explained_{points.kind}"] = _panels(points, found)
            lines = LINES.get(points.kind, ())
            by_layer = [(line, explanations.by_layer(points.kind, line.measure)) for line in lines]
            if by_layer and all(found for _, found in by_layer):
                name = f"explained_{points.kind}_depth"
                plots[name] = over_depth(by_layer, measured.matrices, "Spearman")
    return plots


def _panels(points: Points, found: dict[str, Explained]) -> str:
    """Draw the lost score over each measure, a panel each."""
    abreast = min(ABREAST, len(found))
    down = ceil(len(found) / abreast)
    figure = Figure(figsize=(WIDTH * abreast / ABREAST, HEIGHT * down), layout="constrained")
    grid = figure.subplots(down, abreast, sharey=True, squeeze=False).ravel().tolist()
    for axes, (name, each) in zip(grid, found.items(), strict=False):
        _dots(axes, points, name, each)
    for axes in grid[len(found) :]:
        axes.set_visible(False)
    for axes in grid[::abreast]:
        axes.set_ylabel("score lost, %")
    return to_svg(figure)


def _dots(axes: Axes, points: Points, name: str, found: Explained) -> None:
    values, lost = points.overall(name), 100 * points.lost
    known = ~np.isnan(values)
    size = 18 if len(lost) <= FEW else 7
    axes.scatter(values[known], lost[known], s=size, color=COLOURS["single"], alpha=0.5, linewidths=0)
    spearman = found.found.spearman
    said = "" if isnan(spearman.value) else f"{spearman.value:+.2f}"
    between = "" if isnan(spearman.low) else f" [{spearman.low:+.2f}, {spearman.high:+.2f}]"
    about = ", ".join(filter(None, [said + between, f"n = {found.found.points}"]))
    axes.set_title(f"{TITLES[name]}\n{about}", fontsize=7.5, color=INK, loc="left")
    axes.locator_params(axis="x", nbins=4)
    axes.tick_params(labelsize=7.5)
    axes.tick_params(axis="y", labelcolor=MUTED)
    axes.grid(axis="y")
