"""Entries that route their inputs: what each scores without the task's label and with it."""

from pathlib import Path
from typing import Any

from merganser.report.comparison import Comparison
from merganser.report.sections import Section
from merganser.report.tables import write_csv


def tables(folder: Path, comparison: Comparison) -> None:
    """Write `routed.csv`, where entries are evaluated without the task's label: each value, and that with it."""
    scores = [(row.entry, task, score) for row in comparison.rows for task, score in row.scores.by_task.items()]
    lines = [[e, task, s["metric"], s["value"], s["known"], s["router"]] for e, task, s in scores if "known" in s]
    if lines:
        write_csv(folder / "routed.csv", ["entry", "task", "metric", "routed", "known", "router"], lines)


def page(comparison: Comparison) -> dict[str, Any] | None:
    """Return the rows of such entries."""
    routed = [row for row in comparison.rows if row.scores.known is not None]
    return {"routed": routed} if routed else None


SECTION = Section(page=page, tables=tables, inside="scores")
