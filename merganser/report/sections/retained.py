"""How much of each task an entry's merge retains."""

from pathlib import Path

import numpy as np

from merganser.report.comparison import Comparison
from merganser.report.heatmaps import entries_by_layer, entries_by_task
from merganser.report.sections import Section
from merganser.report.tables import write_csv


def tables(folder: Path, comparison: Comparison) -> None:
    """Write `plots/alignment.csv` of entries with one model, `plots/errors.csv` of those with a part per task."""
    measured = comparison.measured
    for name, measure, entries in (
        ("alignment", "sar", measured.merges(parts=False)),
        ("errors", "error", measured.merges(parts=True)),
    ):
        found = [zip(measured.tasks, measured.overall(entry).tolist(), strict=True) for entry in entries]
        lines = [[entry, *pair] for entry, pairs in zip(entries, found, strict=True) for pair in pairs]
        write_csv(folder / f"plots/{name}.csv", ["entry", "task", measure], lines)


def plots(comparison: Comparison) -> dict[str, str]:
    """Draw the same by entry and task, and over the depth."""
    measured = comparison.measured
    found, tasks = {}, measured.tasks
    single, parts = (measured.merges(parts=parts) for parts in (False, True))
    if single and measured.matrices:
        alignment = np.array([measured.overall(entry) for entry in single])
        found["alignment"] = entries_by_task(alignment, single, tasks)
        found["alignment_depth"] = entries_by_layer(measured, single)
    if parts:
        found["errors"] = entries_by_task(np.array([measured.overall(entry) for entry in parts]), parts, tasks)
    return found


SECTION = Section(tables=tables, plots=plots)
