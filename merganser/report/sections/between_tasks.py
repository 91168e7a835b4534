"""The similarity of the tasks' deltas, before any merge."""

import json
from itertools import product

import numpy as np

from merganser.report.formats import Tables, Wording
from merganser.report.heatmaps import between_tasks
from merganser.report.scores import MergeMeasures
from merganser.report.sections import Section


def tables(measured: MergeMeasures) -> Tables:
    """Return the measures of all sections as JSON, and the cosines."""
    pairs = zip(product(measured.tasks, measured.tasks), measured.cosines.ravel().tolist(), strict=True)
    return {
        "measures.json": json.dumps(measured.as_json()) + "\n",
        "plots/cosines.csv": (["task", "other", "cosine"], [[*pair, value] for pair, value in pairs]),
    }


def plots(measured: MergeMeasures, wording: Wording) -> dict[str, str]:
    """Plot the available measures, pair by pair."""
    if len(measured.tasks) < 2:
        return {}
    drawn = {"cosines": between_tasks(measured.cosines, measured.tasks)}
    if measured.matrices:
        own, centred = (measured.row_spaces(which) for which in ("own", "centred"))
        both = np.where(np.tri(len(own), dtype=bool), own, centred)
        drawn["row_spaces"] = between_tasks(both, measured.tasks)
    return drawn


SECTION = Section(read=lambda comparison: comparison.measured, tables=tables, plots=plots)
