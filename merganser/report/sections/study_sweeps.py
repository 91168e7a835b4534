"""The study of sweeps: an entry's scores over the values of one of its parameters."""

from pathlib import Path
from typing import Any

from merganser.config.params import Params
from merganser.outputs import read_json
from merganser.report.comparison import Comparison
from merganser.report.curves import Curve, CurvePoint, against_values, is_number
from merganser.report.formats import Tables
from merganser.report.sections import Section
from merganser.studies.candidates import candidate_file_name


def read(comparison: Comparison) -> list[Curve] | None:
    """Read what every sweep measured, if any; raise InputError naming a file that is missing."""
    params, folder = comparison.params, comparison.paths.SWEEP_STUDIES
    curves = [
        Curve(name, sweep.method, parameter, _points(params, folder / name, parameter, values))
        for name, sweep in params.studies.sweeps.items()
        for parameter, values in sweep.over.items()
    ]
    return curves or None


def _points(params: Params, folder: Path, parameter: str, values: list[Any]) -> list[CurvePoint]:
    points = []
    for value in values:
        scores = read_json(folder / candidate_file_name({parameter: value}))["scores"]
        points.append(CurvePoint(value=value, by_task={task: scores[task] for task in params.measured}))
    return sorted(points, key=lambda p: p.value) if all(is_number(p.value) for p in points) else points


def tables(curves: list[Curve]) -> Tables:
    """Return every value and task."""
    header = ["sweep", "method", "parameter", "value", "task", "score", "stderr"]
    return {"plots/study_sweeps.csv": (header, [line for curve in curves for line in curve.lines])}


SECTION = Section(
    read=read,
    tables=tables,
    plots=lambda curves, wording: {f"study_sweep-{each.name}": against_values(each, wording.axis) for each in curves},
    inside="studies",
)
