"""Scores on tasks without a fine-tuned model."""

from typing import Any

from merganser.report.comparison import Comparison
from merganser.report.formats import Tables
from merganser.report.paired import Significance, on_unseen, pair_tables, read_significance
from merganser.report.rows import best_cells
from merganser.report.sections import Section


def read(comparison: Comparison) -> Comparison | None:
    """Return the comparison if it has such tasks."""
    return comparison if comparison.params.unseen else None


def read_tests(comparison: Comparison) -> Significance:
    """Test all pairs of entries on these tasks' examples."""
    return read_significance(on_unseen(comparison.rows), comparison.paths.UNSEEN)


def tables(comparison: Comparison) -> Tables:
    """Return each value, with those of mixtures of parts, and the tests."""
    keys = ("metric", "value", "stderr", "count", "uniform", "similar", "oracle", "oracle_task")
    scores = [(row.entry, task, score) for row in comparison.rows for task, score in row.scores.unseen.items()]
    lines = [[entry, task, *map(score.get, keys)] for entry, task, score in scores]
    return {"unseen.csv": (["entry", "task", *keys], lines), **pair_tables(comparison.of(read_tests), "unseen_")}


def page(comparison: Comparison) -> dict[str, Any]:
    """Return the marks of the cells."""
    best = best_cells(on_unseen(comparison.rows), list(comparison.params.unseen))
    return {"unseen_verdicts": comparison.of(read_tests).verdicts, "best_unseen": best}


SECTION = Section(read=read, tables=tables, page=page, inside="scores")
