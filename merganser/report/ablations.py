"""The numbers of ablations: an entry with each of its steps taken out, and paired tests between them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from merganser.config.params import Params
from merganser.config.studies import steps_of
from merganser.evaluation.examples import read_results
from merganser.evaluation.scoring import Score
from merganser.measures.significance import LEVEL, Pairs, compare_models, holm, mean_of_tasks, over_tasks
from merganser.outputs import read_json
from merganser.report.formats import settings
from merganser.report.scores import MeanScore

Values = Mapping[str, Any]


class Compared(NamedTuple):
    """A step's mean score minus another's, on the same examples."""

    difference: float
    p: float  # two-sided, of no difference
    corrected: float  # for the number of steps that are compared so
    over_tasks: float | None  # p of a paired t-test over the tasks

    @property
    def significant(self) -> bool:
        """Tell whether the two can be told apart."""
        return self.corrected < LEVEL


@dataclass(frozen=True, kw_only=True)
class Step(MeanScore):
    """The entry with one step taken out: what it was merged by, what it scored, and how it compares."""

    name: str
    changed: Values  # what takes the step out; nothing of the whole
    chosen: Values  # by its search
    tried: int  # candidates
    whole: Compared | None  # with the whole entry
    above: Compared | None  # with the step above


@dataclass(frozen=True)
class Ablated:
    """One ablation: its steps in the order of params.yaml, the whole entry first."""

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
            compared = [list(each or [None] * len(Compared._fields)) for each in (step.whole, step.above)]
            scores = [step.by_task[task]["value"] for task in self.tasks]
            yield [*about, step.score, step.stderr, *compared[0], *compared[1], *scores]

    @property
    def header(self) -> list[str]:
        """Name the columns of `lines`."""
        numbers = [f"{each}_{field}" for each in ("whole", "above") for field in Compared._fields]
        about = ["ablation", "method", "step", "changed", "chosen", "candidates", "score", "stderr"]
        return [*about, *numbers, *self.tasks]


def read_ablations(params: Params, folder: Path) -> list[Ablated]:
    """Read what every ablation measured, and compare its steps; raise InputError naming a file that is missing."""
    found = []
    for name, ablation in params.studies.ablations.items():
        steps = steps_of(ablation)
        read = [read_json(folder / name / f"{step}.json") for step in steps]
        scores = [{task: one["scores"][task] for task in params.measured} for one in read]
        results = {
            task: [read_results(folder / name / step / f"{task}.safetensors") for step in steps]
            for task in params.measured
        }
        pairs = mean_of_tasks([compare_models(scores[0][task]["metric"], models) for task, models in results.items()])
        whole = _compared(pairs, scores, [0] * (len(steps) - 1))
        above = _compared(pairs, scores, range(len(steps) - 1))
        rows = [
            Step(
                name=step,
                changed=ablation.steps.get(step, {}),
                chosen={key: value for key, value in one["values"].items() if key not in entry.values},
                tried=max(1, len(one["candidates"])),
                by_task=by_task,
                whole=of_whole,
                above=of_above,
            )
            for (step, entry), one, by_task, of_whole, of_above in zip(
                steps.items(), read, scores, [None, *whole], [None, *above], strict=True
            )
        ]
        found.append(Ablated(name, ablation.method, rows))
    return found


def _compared(pairs: Pairs, scores: Sequence[Mapping[str, Score]], others: Sequence[int]) -> list[Compared]:
    """Compare each step after the first with another one."""
    at = list(range(1, len(scores))), list(others)
    differences, p = pairs.difference[at], pairs.p[at]
    tested = [
        over_tasks([score["value"] - scores[other][task]["value"] for task, score in scores[step].items()])
        for step, other in zip(*at, strict=True)
    ]
    of_tasks = [None if test is None else test.p for test in tested]
    numbers = zip(differences.tolist(), p.tolist(), holm(np.asarray(p)).tolist(), of_tasks, strict=True)
    return list(map(Compared._make, numbers))
