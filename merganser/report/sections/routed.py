"""Entries that route their inputs: their scores without the task's label and with it."""

from merganser.report.comparison import Comparison
from merganser.report.formats import Tables
from merganser.report.rows import Row
from merganser.report.sections import Section


def read(comparison: Comparison) -> list[Row] | None:
    """Return the rows of such entries."""
    return [row for row in comparison.rows if row.scores.known is not None] or None


def tables(rows: list[Row]) -> Tables:
    """Return each score without the task's label, and with it."""
    scores = [(row.entry, task, score) for row in rows for task, score in row.scores.by_task.items()]
    lines = [[e, task, s["metric"], s["value"], s["known"], s["router"]] for e, task, s in scores if "known" in s]
    return {"routed.csv": (["entry", "task", "metric", "routed", "known", "router"], lines)}


SECTION = Section(read=read, tables=tables, inside="scores")
