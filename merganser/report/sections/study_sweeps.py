"""Sweeps: an entry's scores over the values of one of its parameters."""

from merganser.config.points import SCORES, Points
from merganser.config.sections import Sweep
from merganser.outputs import read_json
from merganser.report.comparison import Comparison
from merganser.report.curves import Curve, CurvePoint, against_values, is_number
from merganser.report.formats import Tables
from merganser.report.sections import Section


def read(comparison: Comparison) -> list[Curve] | None:
    """Read every sweep's scores; raise InputError naming a missing file."""
    sweeps = comparison.params.studies.sweeps
    return [_curve(comparison, name, sweep) for name, sweep in sweeps.items()] or None


def _curve(comparison: Comparison, name: str, sweep: Sweep) -> Curve:
    points, (parameter,) = [], sweep.over
    for values, point in Points(comparison.params).sweep(name):
        scores = read_json(comparison.paths.POINTS / point.folder / SCORES)["scores"]
        by_task = {task: scores[task] for task in comparison.params.measured}
        points.append(CurvePoint(value=values[parameter], by_task=by_task))
    ordered = sorted(points, key=lambda p: p.value) if all(is_number(p.value) for p in points) else points
    return Curve(name, sweep.method, parameter, ordered)


def tables(curves: list[Curve]) -> Tables:
    """Return every value and task."""
    header = ["sweep", "method", "parameter", "value", "task", "score", "stderr"]
    return {"plots/study_sweeps.csv": (header, [line for curve in curves for line in curve.lines])}


SECTION = Section(
    read=read,
    tables=tables,
    plots=lambda curves, wording: {f"study_sweep-{each.name}": against_values(each, wording.axis) for each in curves},
    numbers=lambda curves: {each.name: each.as_json() for each in curves or ()},
    inside="studies",
)
