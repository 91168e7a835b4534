"""Ablations: an entry with each of its steps removed, and paired tests between them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from merganser.config.entries import steps_of
from merganser.config.points import SCORES, Points
from merganser.evaluation.examples import read_results
from merganser.evaluation.scoring import Score
from merganser.measures.scores import LEVEL
from merganser.measures.significance import Pairs, compare_models, holm, mean_of_tasks, over_tasks
from merganser.outputs import read_json
from merganser.report.comparison import Comparison
from merganser.report.formats import Tables, Wording, settings
from merganser.report.plots import COLOURS, INK, canvas, to_svg
from merganser.report.scores import MeanScore
from merganser.report.sections import Section

Values = Mapping[str, Any]


class StepDifference(NamedTuple):
    """A step's mean score minus another's, on the same examples."""

    difference: float
    p: float  # two-sided, of no difference
    corrected: float  # for the number of steps that are compared so
    over_tasks: float | None  # p of a paired t-test over the tasks

    @property
    def significant(self) -> bool:
        """Tell whether the test finds a difference."""
        return self.corrected < LEVEL


@dataclass(frozen=True, kw_only=True)
class Step(MeanScore):
    """The entry with one step removed: its parameters, its scores, and paired tests."""

    name: str
    changed: Values  # what takes the step out; nothing of the whole
    chosen: Values  # by its search
    tried: int  # candidates
    whole: StepDifference | None  # with the whole entry
    above: StepDifference | None  # with the step above


@dataclass(frozen=True)
class Ablated:
    """One ablation: its steps in the order of params.yaml, the complete entry first."""

    name: str
    method: str
    steps: list[Step]

    @property
    def tasks(self) -> list[str]:
        """List the tasks that have scores."""
        return self.steps[0].tasks

    @property
    def lines(self) -> Iterator[list[Any]]:
        """Give the lines of a table, one a step."""
        for step in self.steps:
            about = [self.name, self.method, step.name, settings(step.changed), settings(step.chosen), step.tried]
            compared = [list(each or [None] * len(StepDifference._fields)) for each in (step.whole, step.above)]
            scores = [step.by_task[task]["value"] for task in self.tasks]
            yield [*about, step.mean, step.error, *compared[0], *compared[1], *scores]

    @property
    def header(self) -> list[str]:
        """Name the columns of `lines`."""
        numbers = [f"{each}_{field}" for each in ("whole", "above") for field in StepDifference._fields]
        about = ["ablation", "method", "step", "changed", "chosen", "candidates", "score", "stderr"]
        return [*about, *numbers, *self.tasks]

    def as_json(self) -> list[dict[str, Any]]:
        """Return all numbers as plain data."""
        return [dict(zip(self.header[2:], line[2:], strict=True)) for line in self.lines]


def read(comparison: Comparison) -> list[Ablated] | None:
    """Read and compare every ablation's steps; raise InputError naming a missing file."""
    params, ablated = comparison.params, []
    for name, ablation in params.studies.ablations.items():
        steps = steps_of(ablation)
        folders = [comparison.paths.POINTS / point.folder for point in Points(params).ablation(name).values()]
        contents = [read_json(folder / SCORES) for folder in folders]
        scores = [{task: one["scores"][task] for task in params.measured} for one in contents]
        results = {
            task: [read_results(folder / f"{task}.safetensors") for folder in folders] for task in params.measured
        }
        pairs = mean_of_tasks([compare_models(scores[0][task]["metric"], models) for task, models in results.items()])
        whole = _compared(pairs, scores, [0] * (len(steps) - 1))
        above = _compared(pairs, scores, range(len(steps) - 1))
        rows = [
            Step(
                name=step,
                changed=ablation.steps.get(step, {}),
                chosen={key: value for key, value in one["values"].items() if key not in entry.values},
                tried=max(1, len(one.get("candidates", ()))),
                by_task=by_task,
                whole=of_whole,
                above=of_above,
            )
            for (step, entry), one, by_task, of_whole, of_above in zip(
                steps.items(), contents, scores, [None, *whole], [None, *above], strict=True
            )
        ]
        ablated.append(Ablated(name, ablation.method, rows))
    return ablated or None


def _compared(pairs: Pairs, scores: Sequence[Mapping[str, Score]], others: Sequence[int]) -> list[StepDifference]:
    """Compare each step after the first with another one."""
    at = list(range(1, len(scores))), list(others)
    differences, p = pairs.difference[at], pairs.p[at]
    tested = [
        over_tasks([score["value"] - scores[other][task]["value"] for task, score in scores[step].items()])
        for step, other in zip(*at, strict=True)
    ]
    of_tasks = [None if test is None else test.p for test in tested]
    numbers = zip(differences.tolist(), p.tolist(), holm(np.asarray(p)).tolist(), of_tasks, strict=True)
    return list(map(StepDifference._make, numbers))


def tables(ablations: list[Ablated]) -> Tables:
    """Return every step and task."""
    return {"plots/study_ablations.csv": (ablations[0].header, [line for each in ablations for line in each.lines])}


def by_step(ablated: Ablated, wording: Wording) -> str:
    """Plot each step's mean score as a bar with one standard error, the complete entry's as a line, a dot per task."""
    steps = ablated.steps
    figure, axes = canvas(5.2, 0.9 + 0.3 * len(steps))
    places, means = range(len(steps)), [100 * step.mean for step in steps]
    axes.barh(places, means, 0.66, color=COLOURS["single"], alpha=0.5)
    errors = [100 * (step.error or 0) for step in steps]
    axes.errorbar(means, places, xerr=errors, fmt="none", ecolor=INK, elinewidth=1)
    for place, step in zip(places, steps, strict=True):
        values = [100 * step.by_task[task]["value"] for task in ablated.tasks]
        axes.scatter(values, [place] * len(values), s=8, color=INK, alpha=0.7, linewidths=0, zorder=3)
    axes.axvline(means[0], color=INK, linewidth=0.8, linestyle=":")
    axes.set_yticks(places, [step.name for step in steps])
    axes.invert_yaxis()
    axes.set(xlabel=f"{wording.axis} (bar: mean; dots: tasks)")
    axes.grid(axis="x")
    axes.spines["left"].set_visible(False)
    return to_svg(figure)


SECTION = Section(
    read=read,
    tables=tables,
    plots=lambda ablations, wording: {f"study_ablation-{each.name}": by_step(each, wording) for each in ablations},
    numbers=lambda ablations: {each.name: each.as_json() for each in ablations or ()},
    inside="studies",
)
