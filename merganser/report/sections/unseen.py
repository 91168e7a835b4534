"""Scores on tasks that no model was fine-tuned on."""

from pathlib import Path
from typing import Any

from merganser.report.comparison import Comparison
from merganser.report.rows import best_values
from merganser.report.sections import Section
from merganser.report.significance import Significance, on_unseen, read_significance, write_significance
from merganser.report.tables import write_csv


def read(comparison: Comparison) -> Significance | None:
    """Test all pairs of entries on the unseen tasks' examples; None without such tasks."""
    if not comparison.params.unseen:
        return None
    return read_significance(on_unseen(comparison.rows), comparison.paths.UNSEEN)


def tables(folder: Path, comparison: Comparison) -> None:
    """Write `unseen.csv`, where there are such tasks: each value, and those of mixtures of parts; and their tests."""
    significance = comparison.of(read)
    if significance is None:
        return
    keys = ("metric", "value", "stderr", "count", "uniform", "similar", "oracle", "oracle_task")
    lines = [
        [row.entry, task, *(score.get(key) for key in keys)]
        for row in comparison.rows
        for task, score in row.scores.unseen.items()
    ]
    write_csv(folder / "unseen.csv", ["entry", "task", *keys], lines)
    write_significance(folder, significance, "unseen_")


def page(comparison: Comparison) -> dict[str, Any] | None:
    """Return what marks the cells."""
    significance = comparison.of(read)
    if significance is None:
        return None
    best = best_values(on_unseen(comparison.rows), list(comparison.params.unseen))
    return {"unseen_verdicts": significance.verdicts, "best_unseen": best}


SECTION = Section(page=page, tables=tables, inside="scores")
