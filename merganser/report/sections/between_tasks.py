"""How alike the tasks' deltas are, before anything is merged."""

import json
from pathlib import Path

import numpy as np

from merganser.report.comparison import Comparison
from merganser.report.heatmaps import between_tasks
from merganser.report.sections import Section
from merganser.report.tables import write_csv


def tables(folder: Path, comparison: Comparison) -> None:
    """Write `measures.json`, with the measures of all sections, and `plots/cosines.csv`."""
    measured = comparison.measured
    (folder / "measures.json").write_text(json.dumps(measured.as_json()) + "\n")
    pairs = zip(measured.tasks, measured.cosines.tolist(), strict=True)
    cosines = [[a, b, value] for a, row in pairs for b, value in zip(measured.tasks, row, strict=True)]
    write_csv(folder / "plots/cosines.csv", ["task", "other", "cosine"], cosines)


def plots(comparison: Comparison) -> dict[str, str]:
    """Draw the measures that there are, pair by pair."""
    measured = comparison.measured
    if len(measured.tasks) < 2:
        return {}
    found = {"cosines": between_tasks(measured.cosines, measured.tasks)}
    if measured.matrices:
        own, centred = (measured.row_spaces(which) for which in ("own", "centred"))
        both = np.where(np.tri(len(own), dtype=bool), own, centred)
        found["row_spaces"] = between_tasks(both, measured.tasks)
    return found


SECTION = Section(tables=tables, plots=plots)
