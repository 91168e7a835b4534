"""All plots of the comparison as SVG text, the same bytes for the same numbers."""

from collections.abc import Sequence

import matplotlib
import numpy as np

from merganser.report.bars import score_bars
from merganser.report.depth import draw_depth
from merganser.report.heatmaps import between_tasks, entries_by_layer, entries_by_task
from merganser.report.learning import learned_rows, learning_curves
from merganser.report.measured import Measured
from merganser.report.radar import radar
from merganser.report.rows import Row
from merganser.report.scatter import against_memory, against_time
from merganser.report.style import STYLE


def make_plots(rows: Sequence[Row], measured: Measured, tasks: Sequence[str]) -> dict[str, str]:
    """Draw every plot whose numbers exist; return SVG text by name."""
    with matplotlib.rc_context(STYLE):
        return _scores(list(rows), tasks) | _between(measured) | _merges(measured)


def _scores(rows: list[Row], tasks: Sequence[str]) -> dict[str, str]:
    plots = {"scores": score_bars(rows, tasks), "memory": against_memory(rows), "time": against_time(rows)}
    if len(tasks) >= 3:
        plots["radar"] = radar(rows, tasks)
    if learned_rows(rows):
        plots["learning"] = learning_curves(rows)
    return plots


def _between(measured: Measured) -> dict[str, str]:
    """Draw the measures between tasks, pair by pair and over the depth."""
    plots = {}
    if len(measured.tasks) > 1:
        plots["cosines"] = between_tasks(measured.cosines, measured.tasks)
    if len(measured.tasks) > 1 and measured.matrices:
        own, centred = (measured.row_spaces(which) for which in ("own", "centred"))
        plots["row_spaces"] = between_tasks(np.where(np.tri(len(own), dtype=bool), own, centred), measured.tasks)
    return plots | (draw_depth(measured) if measured.matrices else {})


def _merges(measured: Measured) -> dict[str, str]:
    """Draw how much of each task an entry's merge retains."""
    plots, tasks = {}, measured.tasks
    single, parts = (measured.merges(parts=parts) for parts in (False, True))
    if single and measured.matrices:
        alignment = np.array([measured.overall(entry) for entry in single])
        plots["alignment"] = entries_by_task(alignment, single, tasks)
        plots["alignment_depth"] = entries_by_layer(measured, single)
    if parts:
        plots["errors"] = entries_by_task(np.array([measured.overall(entry) for entry in parts]), parts, tasks)
    return plots
