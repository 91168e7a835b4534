"""The numbers of sweeps: an entry's scores over the values of one of its parameters."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from merganser.config.params import Params
from merganser.outputs import read_json
from merganser.report.formats import written
from merganser.report.scores import MeanScore
from merganser.studies.candidates import candidate_file_name

MEAN = "mean"


@dataclass(frozen=True, kw_only=True)
class SweepPoint(MeanScore):
    """What an entry with one value scored."""

    value: Any

    @property
    def shown(self) -> str:
        """Return the value as it stands in params.yaml."""
        return written(self.value)


@dataclass(frozen=True)
class Curve:
    """One sweep: its points by ascending value where values are numbers, else in the order of params.yaml."""

    name: str
    method: str
    parameter: str
    points: list[SweepPoint]
    relative: bool = False  # to the individual models

    @property
    def tasks(self) -> list[str]:
        """List the tasks that have scores."""
        return self.points[0].tasks

    @property
    def places(self) -> list[float]:
        """Return where each point stands on the axis: at its value if all are numbers, else one after the other."""
        values = [point.value for point in self.points]
        return [float(value) for value in values] if all(map(is_number, values)) else [*map(float, range(len(values)))]

    @property
    def lines(self) -> Iterator[list[Any]]:
        """Give the lines of a table: each value's mean, then its score on each task."""
        for point in self.points:
            about = [self.name, self.method, self.parameter, point.shown]
            yield [*about, MEAN, point.score, point.stderr]
            for task, found in point.by_task.items():
                yield [*about, task, found["value"], found["stderr"]]


def is_number(value: Any) -> bool:
    """Tell whether a value has a place on an axis."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def read_sweeps(params: Params, folder: Path) -> list[Curve]:
    """Read what every sweep measured; raise InputError naming a file that is missing."""
    return [
        Curve(name, sweep.method, parameter, _points(params, folder / name, parameter, values))
        for name, sweep in params.studies.sweeps.items()
        for parameter, values in sweep.over.items()
    ]


def _points(params: Params, folder: Path, parameter: str, values: list[Any]) -> list[SweepPoint]:
    points = []
    for value in values:
        scores = read_json(folder / candidate_file_name({parameter: value}))["scores"]
        points.append(SweepPoint(value=value, by_task={task: scores[task] for task in params.measured}))
    return sorted(points, key=lambda p: p.value) if all(is_number(p.value) for p in points) else points
