"""Scores of a search's candidates on the validation data over the scaling: of each task, and their mean."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from merganser.outputs import read_json
from merganser.report.comparison import Comparison
from merganser.report.curves import RELATIVE, Curve, CurvePoint, against_values, is_number
from merganser.report.formats import Tables, Wording
from merganser.report.rows import Row
from merganser.report.sections import Section

SCALING = "scaling"


class Searches(NamedTuple):
    """The searched entries, and the curves of searches over several scalings."""

    rows: list[Row]
    curves: dict[str, Curve]


def read(comparison: Comparison) -> Searches | None:
    """Read each search's candidates; raise InputError naming a missing file.

    Scores are relative to the individual models' if all of these are positive, as in the search itself.
    """
    rows, folder = [row for row in comparison.rows if "search" in row.scores.profile], comparison.paths.SEARCH_MEASURES
    searches = {row.entry: read_json(folder / f"{row.scores.profile['search']['name']}.json") for row in rows}
    curves = {entry: _curve(entry, content) for entry, content in searches.items()}
    return Searches(rows, {entry: each for entry, each in curves.items() if len(each.points) > 1}) if rows else None


def _curve(entry: str, search: Mapping[str, Any]) -> Curve:
    """Select the candidates that differ from the chosen one in the scaling alone."""
    own = {task: score["value"] for task, score in search["individual"].items()}
    relative = all(value > 0 for value in own.values())
    points = [
        CurvePoint(value=one["values"][SCALING], by_task=_shares(one["by_task"], own if relative else {}))
        for one in search["candidates"]
        if is_number(one["values"].get(SCALING)) and _others(one["values"]) == _others(search["chosen"])
    ]
    return Curve(entry, search["method"], SCALING, sorted(points, key=lambda point: float(point.value)), relative)


def _others(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name != SCALING}


def _shares(scores: Mapping[str, Any], individual: Mapping[str, float]) -> dict[str, Any]:
    """Divide each task's score and its error by the individual model's score, if there is one."""
    return {
        task: {name: n if n is None else n / individual.get(task, 1) for name, n in score.items()}
        for task, score in scores.items()
    }


def tables(searches: Searches) -> Tables:
    """Return each entry's scores on the validation data over the scaling."""
    header = ["entry", "method", "parameter", "value", "task", "score", "stderr"]
    lines = [line for curve in searches.curves.values() for line in curve.lines]
    return {"plots/searches.csv": (header, lines)} if lines else {}


def plots(searches: Searches, wording: Wording) -> dict[str, str]:
    """Plot every curve."""
    return {
        f"search-{entry}": against_values(curve, RELATIVE if curve.relative else wording.axis)
        for entry, curve in searches.curves.items()
    }


SECTION = Section(read=read, tables=tables, plots=plots, inside="scores")
