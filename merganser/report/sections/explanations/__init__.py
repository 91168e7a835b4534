"""Do measures explain lost scores? The correlation of each measure with the score that is lost."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, isnan
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from merganser.measures.significance import Correlation, correlate
from merganser.report.comparison import Comparison
from merganser.report.curves import WIDTH, LineStyle, over_depth
from merganser.report.formats import Tables, Wording
from merganser.report.plots import COLOURS, INK, MUTED, OTHERS, to_svg
from merganser.report.scores import MergeMeasures
from merganser.report.sections import Section, study_tasks
from merganser.report.sections.explanations.points import TITLES, KindPoints, find_points

ABREAST, HEIGHT = 5, 2.05  # panels in a row, inches of each
FEW = 30  # points, up to which they are drawn large
MOST_DOTS = 1000  # of a panel: more are a picture in the plot, whose size does not grow with them
LINES = {
    "merges": (
        LineStyle("sar", "SAR"),
        LineStyle("cosine_with_merge", "cosine", OTHERS[0]),
        LineStyle("effective_rank_of_merge", "effective rank", COLOURS["parts"]),
    ),
    "subsets": (
        LineStyle("interference", "STI"),
        LineStyle("row_spaces", "row spaces", COLOURS["parts"]),
        LineStyle("row_spaces_centred", "row spaces, centred", COLOURS["parts"], "--"),
        LineStyle("agreement", "sign agreement", OTHERS[0]),
        LineStyle("cosine", "cosine", OTHERS[1]),
        LineStyle("effective_rank", "effective rank", COLOURS["reference"]),
    ),
}


ESTIMATES = ("spearman", "spearman_low", "spearman_high", "pearson", "pearson_low", "pearson_high")
HEADER = ("points", "measure", "layer", "n", "groups", *ESTIMATES)


class Kind(NamedTuple):
    """A kind of points: its title, the bootstrap's groups, and what a point is."""

    title: str
    grouped: str
    about: str


KINDS = {
    "merges": Kind(
        "entries × tasks",
        "entries",
        "A point is one entry with one model on one task. The measures are those of its merge.",
    ),
    "errors": Kind(
        "entries with parts × tasks",
        "entries",
        "A point is one task's model rebuilt from its parts, compared with the original.",
    ),
    "tasks": Kind(
        "tasks",
        "tasks",
        "A point is a task with its mean loss over all entries with one model. Measures of task pairs are means over "
        "all others.",
    ),
    "subsets": Kind(
        "subsets × entries",
        "subsets",
        "A point is one subset of the tasks, merged by one entry of the study of task numbers, minus the entry's mean "
        "loss. R(k) and I(k) are sums over the subset, centred by the mean of all tasks. They grow with the number of "
        "tasks, which is plotted next to them.",
    ),
}


class Explained(NamedTuple):
    """The correlation of one measure with the lost score, over all matrices or in one (`layer`)."""

    kind: str  # a key of KINDS
    measure: str
    layer: str  # empty: the mean over the matrices
    found: Correlation


@dataclass(frozen=True)
class Explanations:
    """All points, and the correlation of each of their measures with the lost score."""

    points: list[KindPoints]
    explained: list[Explained]
    matrices: list[str]  # by depth

    @property
    def overall(self) -> list[Explained]:
        """List the correlations of the measures' means over the matrices."""
        return [each for each in self.explained if not each.layer]

    def by_layer(self, kind: str, measure: str) -> dict[str, float]:
        """Return Spearman's correlation by matrix."""
        of_layers = [each for each in self.explained if each.layer and (each.kind, each.measure) == (kind, measure)]
        return {each.layer: each.found.spearman.value for each in of_layers}


def read(comparison: Comparison) -> Explanations | None:
    """Correlate every measure of this comparison with the lost score; None if there are no points."""
    measured = comparison.measured
    points = find_points(comparison.rows, measured, comparison.of(study_tasks.read))
    return Explanations(points, explain(points, measured), measured.matrices) if points else None


def explain(points: Sequence[KindPoints], measured: MergeMeasures) -> list[Explained]:
    """Correlate every measure of each kind of points with the lost score: its mean over matrices, then each matrix."""
    lines = []
    for each in points:
        for measure, by_layer in each.measures.items():
            lines.append(Explained(each.kind, measure, "", correlate(each.overall(measure), each.lost, each.groups)))
            if len(by_layer) == len(measured.matrices) > 1:
                for layer, values in zip(measured.matrices, by_layer, strict=True):
                    lines.append(Explained(each.kind, measure, layer, correlate(values, each.lost, each.groups)))
    return lines


def tables(explanations: Explanations) -> Tables:
    """Return the correlation of each measure with the lost score, over matrices and in each."""
    lines = [
        (KINDS[e.kind].title, e.measure, e.layer, e.found.points, e.found.groups, *e.found.spearman, *e.found.pearson)
        for e in explanations.explained
    ]
    return {"explanations.csv": (HEADER, lines)}


def plots(explanations: Explanations, wording: Wording) -> dict[str, str]:
    """Plot each kind's points for each measure, and correlations over the depth."""
    drawn = {}
    overall = {(each.kind, each.measure): each for each in explanations.overall}
    for points in explanations.points:
        measures = {name: overall[points.kind, name] for name in points.measures}
        drawn[f"explained_{points.kind}"] = _panels(points, measures)
        lines = LINES.get(points.kind, ())
        by_layer = [(line, explanations.by_layer(points.kind, line.measure)) for line in lines]
        if by_layer and all(values for _, values in by_layer):
            drawn[f"explained_{points.kind}_depth"] = over_depth(by_layer, explanations.matrices, "Spearman")
    return drawn


def _panels(points: KindPoints, explained: dict[str, Explained]) -> str:
    """Plot the lost score over each measure, one panel each."""
    abreast = min(ABREAST, len(explained))
    down = ceil(len(explained) / abreast)
    figure = Figure(figsize=(WIDTH * abreast / ABREAST, HEIGHT * down), layout="constrained")
    grid = figure.subplots(down, abreast, sharey=True, squeeze=False).ravel().tolist()
    for axes, (name, each) in zip(grid, explained.items(), strict=False):
        _dots(axes, points, name, each)
    for axes in grid[len(explained) :]:
        axes.set_visible(False)
    for axes in grid[::abreast]:
        axes.set_ylabel("score lost, %")
    return to_svg(figure)


def _dots(axes: Axes, points: KindPoints, name: str, explained: Explained) -> None:
    values, lost = points.overall(name), 100 * points.lost
    known = ~np.isnan(values)
    size = 18 if len(lost) <= FEW else 7
    look: dict[str, Any] = {"s": size, "color": COLOURS["single"], "alpha": 0.5, "linewidths": 0}
    axes.scatter(values[known], lost[known], rasterized=len(lost) > MOST_DOTS, **look)
    spearman = explained.found.spearman
    said = "" if isnan(spearman.value) else f"{spearman.value:+.2f}"
    between = "" if isnan(spearman.low) else f" [{spearman.low:+.2f}, {spearman.high:+.2f}]"
    about = ", ".join(filter(None, [said + between, f"n = {explained.found.points}"]))
    axes.set_title(f"{TITLES[name]}\n{about}", fontsize=7.5, color=INK, loc="left")
    axes.locator_params(axis="x", nbins=4)
    axes.tick_params(labelsize=7.5)
    axes.tick_params(axis="y", labelcolor=MUTED)
    axes.grid(axis="y")


SECTION = Section(read=read, tables=tables, plots=plots, page=lambda found: {"kinds": KINDS, "measure_titles": TITLES})
