"""Tasks merged one after another: scores after each task, backward transfer and forgetting."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any, NamedTuple

from merganser.config.points import SCORES, Points
from merganser.outputs import read_json
from merganser.report.comparison import Comparison
from merganser.report.formats import Wording
from merganser.report.plots import LINES, PALETTE, canvas, to_svg
from merganser.report.scores import values_of
from merganser.report.sections import Section


class AfterTask(NamedTuple):
    """The score on one task after merging some tasks, as a fraction."""

    entry: str
    order: int  # from 1
    merged: int  # tasks, this one among them
    task: str
    score: float


class Spread(NamedTuple):
    """The mean of a measure over the orders, and the sample standard deviation: None for one order."""

    mean: float
    deviation: float | None


@dataclass(frozen=True)
class Sequential:
    """The scores of an entry's merges in one order: `steps[k]` has those on the first k + 1 tasks, by task."""

    steps: Sequence[Mapping[str, float]]

    @property
    def means(self) -> list[float]:
        """Return the mean score over the tasks merged so far, after each task."""
        return [fmean(step.values()) for step in self.steps]

    @property
    def backward_transfer(self) -> float:
        """Return the mean of a task's last score minus its first, over all tasks but the last.

        Lopez-Paz and Ranzato, 2017, arXiv:1706.08840, equation 3.
        """
        return fmean(self.steps[-1][task] - scores[0] for task, scores in self._before_last.items())

    @property
    def forgetting(self) -> float:
        """Return the mean of a task's best earlier score minus its last, over all tasks but the last.

        Chaudhry et al., 2018, arXiv:1801.10112, section 3.
        """
        return fmean(max(scores) - self.steps[-1][task] for task, scores in self._before_last.items())

    @property
    def _before_last(self) -> dict[str, list[float]]:
        """Return each task's scores before the last task was merged."""
        return {task: [step[task] for step in self.steps[:-1] if task in step] for task in self.steps[-2]}


MEAN = "mean"
MEASURES: Mapping[str, Callable[[Sequential], float]] = {
    MEAN: lambda one: one.means[-1],
    "backward transfer": lambda one: one.backward_transfer,
    "forgetting": lambda one: one.forgetting,
}


@dataclass(frozen=True)
class Continual:
    """Each entry's scores in each order of the tasks."""

    entries: Mapping[str, Sequence[Sequential]]

    @property
    def measures(self) -> Mapping[str, Callable[[Sequential], float]]:
        """Return the measures of an order: for a single task the mean alone."""
        several = all(len(one.steps) > 1 for orders in self.entries.values() for one in orders)
        return MEASURES if several else {MEAN: MEASURES[MEAN]}

    @property
    def rows(self) -> list[AfterTask]:
        """List every score."""
        return [
            AfterTask(entry, order, merged, task, score)
            for entry, orders in self.entries.items()
            for order, one in enumerate(orders, start=1)
            for merged, step in enumerate(one.steps, start=1)
            for task, score in step.items()
        ]

    @property
    def summaries(self) -> dict[str, dict[str, Spread]]:
        """Return each entry's measures over the orders."""
        return {
            entry: {title: spread([of(one) for one in orders]) for title, of in self.measures.items()}
            for entry, orders in self.entries.items()
        }

    def as_json(self) -> dict[str, Any]:
        """Return all numbers as plain data."""
        summaries = {
            entry: {name: one._asdict() for name, one in each.items()} for entry, each in self.summaries.items()
        }
        return {"scores": [row._asdict() for row in self.rows], "entries": summaries}


def spread(values: Sequence[float]) -> Spread:
    """Return the mean and the sample's standard deviation."""
    return Spread(fmean(values), stdev(values) if len(values) > 1 else None)


def read(comparison: Comparison) -> Continual | None:
    """Read every merge's scores on its tasks; raise InputError naming a missing file."""
    points, folder = Points(comparison.params), comparison.paths.POINTS
    entries = {
        name: [
            Sequential([values_of(read_json(folder / point.folder / SCORES)["scores"]) for point in order])
            for order in points.continual(name)
        ]
        for name in comparison.params.studies.continual.methods
    }
    return Continual(entries) if entries else None


def plots(study: Continual, wording: Wording) -> dict[str, str]:
    """Plot each entry's mean score over the number of merged tasks: the mean over the orders as a line."""
    figure, axes = canvas(5.2, 3.8)
    for index, (entry, orders) in enumerate(study.entries.items()):
        colour, style = PALETTE[index % len(PALETTE)], LINES[index // len(PALETTE) % len(LINES)]
        by_count = list(zip(*(one.means for one in orders), strict=True))
        counts = range(1, len(by_count) + 1)
        means = [100 * fmean(each) for each in by_count]
        axes.fill_between(
            counts,
            [100 * min(each) for each in by_count],
            [100 * max(each) for each in by_count],
            color=colour,
            alpha=0.12,
            linewidth=0,
        )
        axes.plot(counts, means, color=colour, linestyle=style, linewidth=1.7, marker="o", markersize=3, label=entry)
    axes.set_xticks(list(counts))
    axes.set(xlabel="tasks merged so far", ylabel=wording.axis)
    axes.grid(axis="y")
    figure.legend(loc="outside lower center", ncols=min(4, len(study.entries)))
    return {"study_continual": to_svg(figure)}


SECTION = Section(
    read=read,
    tables=lambda study: {"plots/study_continual.csv": (AfterTask._fields, study.rows)},
    plots=plots,
    numbers=lambda study: study and study.as_json(),
    inside="studies",
)
