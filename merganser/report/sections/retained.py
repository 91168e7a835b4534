"""The share of each task that an entry's merge retains."""

import numpy as np

from merganser.report.comparison import Comparison
from merganser.report.formats import Table, Tables, Wording
from merganser.report.heatmaps import entries_by_layer, entries_by_task
from merganser.report.sections import TASK_NUMBER, Section


def tables(comparison: Comparison) -> Tables:
    """Return one number per entry and task: for entries with one model, and for those with parts per task."""
    measured = comparison.measured

    def table(measure: str, entries: list[str]) -> Table:
        curves = [(entry, zip(measured.tasks, measured.overall(entry).tolist(), strict=True)) for entry in entries]
        lines = [[entry, *pair, number] for entry, pairs in curves for number, pair in enumerate(pairs, start=1)]
        return ["entry", "task", measure, TASK_NUMBER], lines

    return {
        "plots/alignment.csv": table("sar", measured.merges(parts=False)),
        "plots/errors.csv": table("error", measured.merges(parts=True)),
    }


def plots(comparison: Comparison, wording: Wording) -> dict[str, str]:
    """Plot these numbers by entry and task, and over the depth."""
    measured, shown = comparison.measured, {row.entry for row in comparison.shown}
    drawn, tasks = {}, measured.tasks
    single, parts = ([name for name in measured.merges(parts=parts) if name in shown] for parts in (False, True))
    if single and measured.matrices:
        alignment = np.array([measured.overall(entry) for entry in single])
        drawn["alignment"] = entries_by_task(alignment, single, tasks)
        drawn["alignment_depth"] = entries_by_layer(measured, single)
    if parts:
        drawn["errors"] = entries_by_task(np.array([measured.overall(entry) for entry in parts]), parts, tasks)
    return drawn


SECTION = Section(tables=tables, plots=plots)
