"""The study of sweeps: an entry's scores over the values of one of its parameters."""

from pathlib import Path
from typing import Any

from merganser.config.params import Params
from merganser.outputs import read_json
from merganser.report.comparison import Comparison
from merganser.report.curves import Curve, CurvePoint, against_values, is_number
from merganser.report.sections import Section
from merganser.report.tables import write_csv
from merganser.studies.candidates import file_name


def read(comparison: Comparison) -> list[Curve]:
    """Read what every sweep measured; raise InputError naming a file that is missing."""
    params, folder = comparison.params, comparison.paths.SWEEP_STUDIES
    return [
        Curve(name, sweep.method, parameter, _points(params, folder / name, parameter, values))
        for name, sweep in params.studies.sweeps.items()
        for parameter, values in sweep.over.items()
    ]


def _points(params: Params, folder: Path, parameter: str, values: list[Any]) -> list[CurvePoint]:
    points = []
    for value in values:
        scores = read_json(folder / file_name({parameter: value}))["scores"]
        points.append(CurvePoint(value=value, by_task={task: scores[task] for task in params.measured}))
    return sorted(points, key=lambda p: p.value) if all(is_number(p.value) for p in points) else points


def tables(folder: Path, comparison: Comparison) -> None:
    """Write `plots/study_sweeps.csv`."""
    if curves := comparison.of(read):
        header = ["sweep", "method", "parameter", "value", "task", "score", "stderr"]
        write_csv(folder / "plots/study_sweeps.csv", header, [line for curve in curves for line in curve.lines])


def plots(comparison: Comparison) -> dict[str, str]:
    """Draw every curve."""
    return {
        f"study_sweep-{curve.name}": against_values(curve, comparison.wording.axis) for curve in comparison.of(read)
    }


def page(comparison: Comparison) -> dict[str, Any] | None:
    """Return the curves."""
    curves = comparison.of(read)
    return {"curves": curves} if curves else None


SECTION = Section(page=page, tables=tables, plots=plots, inside="studies")
