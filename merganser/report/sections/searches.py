"""Scores on the validation data over the scaling that searches tried.

A search merges all tasks by each candidate, never some of them: there is a curve of each task, and of their mean.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from merganser.outputs import read_json
from merganser.report.comparison import Comparison
from merganser.report.curves import RELATIVE, Curve, CurvePoint, against_values, is_number
from merganser.report.rows import Row
from merganser.report.sections import Section
from merganser.report.tables import write_csv

SCALING = "scaling"


def read(comparison: Comparison) -> dict[str, Curve]:
    """Return the curve of each entry whose search tried several scalings; raise InputError naming a missing file.

    Its scores are relative to the individual models' where all of these score, as those that the search chose by.
    """
    searched = {row.entry: row.scores.profile["search"]["name"] for row in _searched(comparison)}
    folder = comparison.paths.SEARCH_MEASURES
    curves = {entry: _curve(entry, read_json(folder / f"{name}.json")) for entry, name in searched.items()}
    return {entry: curve for entry, curve in curves.items() if len(curve.points) > 1}


def _searched(comparison: Comparison) -> list[Row]:
    return [row for row in comparison.rows if "search" in row.scores.profile]


def _curve(entry: str, found: Mapping[str, Any]) -> Curve:
    """Take the candidates that are the chosen one but for their scaling."""
    own = {task: score["value"] for task, score in found["individual"].items()}
    relative = all(value > 0 for value in own.values())
    points = [
        CurvePoint(value=one["values"][SCALING], by_task=_shares(one["by_task"], own if relative else {}))
        for one in found["candidates"]
        if is_number(one["values"].get(SCALING)) and _others(one["values"]) == _others(found["chosen"])
    ]
    return Curve(entry, found["method"], SCALING, sorted(points, key=lambda point: float(point.value)), relative)


def _others(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name != SCALING}


def _shares(scores: Mapping[str, Any], individual: Mapping[str, float]) -> dict[str, Any]:
    """Divide each task's score and its error by the individual model's score, if there is one."""
    return {
        task: {name: n if n is None else n / individual.get(task, 1) for name, n in score.items()}
        for task, score in scores.items()
    }


def tables(folder: Path, comparison: Comparison) -> None:
    """Write `plots/searches.csv`: each entry's scores on the validation data over the scaling that its search tried."""
    if curves := comparison.of(read):
        header = ["entry", "method", "parameter", "value", "task", "score", "stderr"]
        write_csv(folder / "plots/searches.csv", header, [line for curve in curves.values() for line in curve.lines])


def plots(comparison: Comparison) -> dict[str, str]:
    """Draw every curve."""
    return {
        f"search-{entry}": against_values(curve, RELATIVE if curve.relative else comparison.wording.axis)
        for entry, curve in comparison.of(read).items()
    }


def page(comparison: Comparison) -> dict[str, Any] | None:
    """Return the entries that were searched, and their curves."""
    searched = _searched(comparison)
    return {"searched": searched, "searches": comparison.of(read)} if searched else None


SECTION = Section(page=page, tables=tables, plots=plots, inside="scores")
