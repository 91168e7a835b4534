"""The study of ranks: the score of each task's own model with its delta truncated to a share of the rank."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from matplotlib.axes import Axes

from merganser.outputs import read_json
from merganser.report.comparison import Comparison
from merganser.report.formats import Wording
from merganser.report.plots import COLOURS, INK, MUTED, canvas, log_scale, one_legend, to_svg
from merganser.report.sections import Section


class RankPoint(NamedTuple):
    """One task's own model with its delta truncated to a share of the rank; 1 is the whole delta."""

    task: str
    fraction: float
    score: float


TABLE = "plots/study_rank.csv"


@dataclass(frozen=True)
class RankResults:
    """The results of the study."""

    points: list[RankPoint]

    @property
    def fractions(self) -> list[float]:
        """List the shares of the rank, the whole delta last."""
        return list(dict.fromkeys(point.fraction for point in self.points))

    def mean_at(self, fraction: float) -> float:
        """Return the mean score over the tasks at one share of the rank."""
        scores = [point.score for point in self.points if point.fraction == fraction]
        return sum(scores) / len(scores)

    def as_json(self) -> dict[str, Any]:
        """Return all numbers as plain data."""
        means = {f"{fraction:g}": self.mean_at(fraction) for fraction in self.fractions}
        return {"tasks": [point._asdict() for point in self.points], "mean": means}


def read(comparison: Comparison) -> RankResults | None:
    """Read the scores of each task's truncated models; raise InputError naming a missing file."""
    params, folder = comparison.params, comparison.paths.RANK_STUDIES
    studied = params.tasks if params.studies.rank.fractions else ()
    curves = {task: read_json(folder / f"{task}.json")["curve"] for task in studied}
    points = [RankPoint(task, p["fraction"], p["value"]) for task, curve in curves.items() for p in curve]
    return RankResults(points) if points else None


def plots(study: RankResults, wording: Wording) -> dict[str, str]:
    """Plot the mean score over the share of the rank, each task as a thin line, the whole models' mean as a level."""
    figure, axes = canvas(5.2, 3.8)
    fractions = study.fractions
    for task in dict.fromkeys(point.task for point in study.points):
        _rank_line(axes, fractions, [p.score for p in study.points if p.task == task], MUTED, 0.6, "one task")
    means = [study.mean_at(fraction) for fraction in fractions]
    axes.axhline(100 * means[-1], color=INK, linewidth=0.8, linestyle=":", label="fine-tuned models, mean")
    _rank_line(axes, fractions, means, COLOURS["single"], 1.9, "mean over tasks")
    log_scale(axes, "x", fractions)
    axes.set_xticks(fractions, [f"{100 * fraction:g}" for fraction in fractions])
    axes.minorticks_off()
    axes.set(xlabel="singular values kept of each task's own delta, %", ylabel=wording.axis)
    axes.grid(axis="y")
    one_legend(figure, axes)
    return {"study_rank": to_svg(figure)}


def _rank_line(
    axes: Axes, fractions: Sequence[float], values: Sequence[float], colour: str, width: float, label: str
) -> None:
    heights = [100 * value for value in values]
    axes.plot(fractions, heights, color=colour, linewidth=width, marker="o", markersize=2 * width, label=label)


SECTION = Section(
    read=read,
    tables=lambda study: {TABLE: (RankPoint._fields, study.points)},
    without={TABLE: (RankPoint._fields, ())},
    plots=plots,
    numbers=lambda study: (study or RankResults([])).as_json(),
    inside="studies",
)
