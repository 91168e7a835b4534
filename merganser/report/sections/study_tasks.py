"""The study over the number of tasks: scores of merges of some tasks, with significance."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
from scipy.stats import ttest_rel

from merganser.config.params import Params
from merganser.config.points import SCORES, Points
from merganser.evaluation.scoring import Score
from merganser.measures.scores import LEVEL, normalised_score
from merganser.measures.significance import ROUNDING
from merganser.outputs import read_json
from merganser.report.comparison import Comparison
from merganser.report.curves import RELATIVE
from merganser.report.formats import Tables, Wording
from merganser.report.plots import LINES, PALETTE, canvas, to_svg
from merganser.report.scores import individual_values, values_of
from merganser.report.sections import Section

DODGE = 0.09  # between the entries' dots of one size, in tasks


class SubsetScore(NamedTuple):
    """One entry's merge of one subset: mean scores over the subset's tasks, as fractions."""

    entry: str
    tasks: int
    subset: tuple[str, ...]
    score: float
    normalised: float | None  # by the individual models, None where they are not in the comparison
    unseen: float | None = None  # the same as `value`, over the tasks that are not merged; None where not measured
    by_task: tuple[float, ...] = ()  # what `value` is the mean of, one number a task of the subset

    @property
    def value(self) -> float:
        """Return the plotted and tested value: the normalised score if there is one."""
        return self.score if self.normalised is None else self.normalised


TABLE, HEADER = "plots/study_tasks.csv", SubsetScore._fields[:-1]


class Test(NamedTuple):
    """A paired test: how many pairs it has, and its p-value."""

    pairs: int
    p: float | None

    @property
    def significant(self) -> bool:
        """Tell whether the first entry's lead is significant."""
        return self.p is not None and self.p < LEVEL


class Summary(NamedTuple):
    """One entry on all subsets of one size."""

    entry: str
    tasks: int
    subsets: int
    mean: float
    deviation: float | None  # of the sample; None for one subset
    unseen: float | None  # the mean over the subsets, of tasks that are not merged
    p: float | None  # of the study's first entry being no better than this one, the pairs being the subsets
    p_over_tasks: float | None = None  # the same, the pairs being the tasks of all subsets

    @property
    def tests(self) -> dict[str, Test]:
        """Return both tests, by their kind of pairs."""
        return {"subsets": Test(self.subsets, self.p), "tasks": Test(self.subsets * self.tasks, self.p_over_tasks)}


@dataclass(frozen=True)
class SubsetResults:
    """The results of the study."""

    points: list[SubsetScore]
    summaries: list[Summary]

    @property
    def normalised(self) -> bool:
        """Tell whether the plotted scores are relative to the individual models'."""
        return all(point.normalised is not None for point in self.points)

    @property
    def entries(self) -> list[str]:
        """List the entries studied, in the order of params.yaml."""
        return list(dict.fromkeys(point.entry for point in self.points))

    @property
    def sizes(self) -> list[int]:
        """List the numbers of tasks."""
        return list(dict.fromkeys(point.tasks for point in self.points))

    @property
    def by_entry(self) -> dict[str, list[Summary]]:
        """Return each entry's summaries, one a size."""
        return {entry: [s for s in self.summaries if s.entry == entry] for entry in self.entries}

    @property
    def with_unseen(self) -> dict[str, list[Summary]]:
        """Return the summaries of each entry that was also scored on tasks that it did not merge."""
        return {entry: rows for entry, rows in self.by_entry.items() if any(s.unseen is not None for s in rows)}

    @property
    def tests(self) -> int:
        """Count the p-values."""
        return sum(test.p is not None for summary in self.summaries for test in summary.tests.values())

    def as_json(self) -> dict[str, Any]:
        """Return all numbers as plain data."""
        return {"subsets": [p._asdict() for p in self.points], "sizes": [s._asdict() for s in self.summaries]}


def read(comparison: Comparison) -> SubsetResults | None:
    """Read the scores of every merge of some tasks; raise InputError naming a missing file."""
    params, scores = comparison.params, comparison.scores
    individual = individual_values(params, {entry: score.values for entry, score in scores.items()})
    points = _read_points(params, individual, comparison.paths.POINTS)
    return SubsetResults(points, summarise(points)) if points else None


def _read_points(params: Params, individual: Mapping[str, float] | None, folder: Path) -> list[SubsetScore]:
    points = []
    for entry in params.studies.tasks.methods:
        for subset, point in Points(params).task_study(entry).items():
            scores = read_json(folder / point.folder / SCORES)["scores"]
            merged = {task: scores[task] for task in subset}
            score, normalised = _means(merged, individual)
            left = {task: scores[task] for task in point.others}
            others = _means(left, individual) if left else (None, None)
            unseen = others[0] if others[1] is None else others[1]
            ratios = tuple(value / (individual[task] if individual else 1) for task, value in values_of(merged).items())
            points.append(SubsetScore(entry, len(subset), subset, score, normalised, unseen, ratios))
    return points


def _means(scores: Mapping[str, Score], individual: Mapping[str, float] | None) -> tuple[float, float | None]:
    """Return the mean score, and the normalised one where there are individual models."""
    values = values_of(scores)
    own = {task: individual[task] for task in values} if individual else None
    return sum(values.values()) / len(values), normalised_score(values, own) if own else None


def summarise(points: Sequence[SubsetScore]) -> list[Summary]:
    """Return each entry's mean and spread at each size, and tests of the first entry against each other one."""
    of_size: dict[tuple[str, int], list[SubsetScore]] = {}
    for point in points:
        of_size.setdefault((point.entry, point.tasks), []).append(point)
    return [_summary(own, of_size[points[0].entry, size]) for (_, size), own in of_size.items()]


def _summary(own: Sequence[SubsetScore], first: Sequence[SubsetScore]) -> Summary:
    """Summarise an entry's subsets of one size; `first`: those of the study's first entry, in the same order."""
    values, first_values = ([point.value for point in points] for points in (own, first))
    by_task, first_by_task = (list(chain.from_iterable(point.by_task for point in points)) for points in (own, first))
    unseen = [point.unseen for point in own if point.unseen is not None]
    return Summary(
        entry=own[0].entry,
        tasks=own[0].tasks,
        subsets=len(own),
        mean=sum(values) / len(values),
        deviation=float(np.std(values, ddof=1)) if len(values) > 1 else None,
        unseen=fmean(unseen) if unseen else None,
        p=None if own is first else paired_p_value(first_values, values),
        p_over_tasks=None if own is first else paired_p_value(first_by_task, by_task),
    )


def paired_p_value(first: Sequence[float], other: Sequence[float]) -> float | None:
    """Return the one-sided paired t-test's p: whether the first is better on the same subsets, or tasks.

    DRM's appendix C tests over tasks, each score relative to the task's own model. None for a single pair, and if
    all pairs differ by the same.
    """
    if len(first) < 2 or np.ptp(np.subtract(first, other)) < ROUNDING:
        return None
    return float(ttest_rel(first, other, alternative="greater").pvalue)


def tables(study: SubsetResults) -> Tables:
    """Return every subset, and every size."""
    lines = [[*p[:2], "+".join(p.subset), *p[3:-1]] for p in study.points]
    return {TABLE: (HEADER, lines), "plots/study_sizes.csv": (Summary._fields, study.summaries)}


def plots(study: SubsetResults, wording: Wording) -> dict[str, str]:
    """Plot each subset's score as a dot, and each entry's mean as a line with one standard deviation."""
    figure, axes = canvas(5.2, 3.8)
    middle = (len(study.entries) - 1) / 2
    for index, entry in enumerate(study.entries):
        colour, style = PALETTE[index % len(PALETTE)], LINES[index // len(PALETTE) % len(LINES)]
        shift = DODGE * (index - middle)
        dots = [point for point in study.points if point.entry == entry]
        axes.scatter(
            [p.tasks + shift for p in dots], [100 * p.value for p in dots], s=9, color=colour, alpha=0.5, linewidths=0
        )
        means = study.by_entry[entry]
        places, heights = [s.tasks + shift for s in means], [100 * s.mean for s in means]
        spread = [100 * (s.deviation or 0) for s in means]
        low, high = ([h + sign * d for h, d in zip(heights, spread, strict=True)] for sign in (-1, 1))
        axes.fill_between(places, low, high, color=colour, alpha=0.12, linewidth=0)
        axes.plot(places, heights, color=colour, linestyle=style, linewidth=1.7, label=entry)
    axes.set_xticks(study.sizes)
    axes.set(xlabel="tasks merged", ylabel=RELATIVE if study.normalised else wording.axis)
    axes.grid(axis="y")
    figure.legend(loc="outside lower center", ncols=min(4, len(study.entries)))
    return {"study_tasks": to_svg(figure)}


SECTION = Section(
    read=read,
    tables=tables,
    without={TABLE: (HEADER, ())},
    plots=plots,
    numbers=lambda study: (study or SubsetResults([], [])).as_json(),
    inside="studies",
)
