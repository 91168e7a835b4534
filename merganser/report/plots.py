"""All plots of the comparison as SVG text, the same bytes for the same numbers."""

import math
from collections.abc import Sequence
from itertools import cycle, groupby
from typing import cast

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.projections.polar import PolarAxes
from matplotlib.ticker import MaxNLocator

from merganser.report.bounds import check_claims, draw_bounds
from merganser.report.depth import draw_depth
from merganser.report.heatmaps import between_tasks, entries_by_layer, entries_by_task
from merganser.report.measured import Measured
from merganser.report.rows import Row, best, in_group, lowest
from merganser.report.scatter import against_memory, against_time
from merganser.report.spaces import draw_spaces
from merganser.report.style import COLOURS, INK, MUTED, OTHERS, STYLE, canvas, to_svg

HEADING = 0.9  # the room of a family's name, in bars
LINES = [(colour, style) for style in ("-", "--", ":") for colour in (COLOURS["single"], COLOURS["parts"], *OTHERS)]


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
    if measured.matrices and check_claims(measured):
        plots["bounds"] = draw_bounds(measured)
    return plots | draw_spaces(measured) | (draw_depth(measured) if measured.matrices else {})


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


def score_bars(rows: list[Row], tasks: Sequence[str]) -> str:
    """Draw each entry's mean score as a bar under its family's name, with one dot a task."""
    places, headings = _places(rows)
    last = places[-1] + 0.6
    figure, axes = canvas(5.2, 0.6 + 0.19 * last)
    means = [100 * row.scores.mean for row in rows]
    axes.barh(places, means, 0.66, color=[COLOURS[row.group] for row in rows], alpha=0.85)
    for place, row, mean in zip(places, rows, means, strict=True):
        values = [100 * row.scores.values[task] for task in tasks]
        axes.scatter(values, [place] * len(values), s=6, color=INK, alpha=0.45, linewidths=0, zorder=3)
        axes.annotate(f"{mean:.1f}", (101.5, place), va="center", fontsize=8, color=INK, annotation_clip=False)
    for place, family in headings:
        axes.annotate(family, (0.5, place), va="center", fontsize=7.5, color=MUTED)
    axes.set_yticks(places, [row.entry for row in rows])
    axes.tick_params(axis="y", labelsize=8)
    axes.set(xlim=(lowest(rows), 100), ylim=(last, -0.6), xlabel=f"{rows[0].wording.axis} (bar: mean; dots: tasks)")
    axes.grid(axis="x")
    axes.spines["left"].set_visible(False)
    return to_svg(figure)


def _places(rows: list[Row]) -> tuple[list[float], list[tuple[float, str]]]:
    """Return the height of each row's bar, and of each family's name above its own."""
    place, places, headings = 0.0, [], []
    for family, members in groupby(rows, key=lambda row: row.about.family):
        headings.append((place, family))
        place += HEADING
        for _ in members:
            places.append(place)
            place += 1
    return places, headings


def radar(rows: list[Row], tasks: Sequence[str]) -> str:
    """Draw the references and the best entries of each group over the tasks."""
    figure = Figure(figsize=(4.6, 4.6), layout="constrained")
    axes = cast(PolarAxes, figure.add_subplot(projection="polar"))
    axes.set_theta_offset(math.pi / 2)
    axes.set_theta_direction(-1)
    angles = [2 * math.pi * i / len(tasks) for i in range(len(tasks))]
    for row, colour, line in _chosen(rows):
        values = [100 * row.scores.values[task] for task in tasks]
        axes.plot(
            [*angles, angles[0]], [*values, values[0]], color=colour, linestyle=line, linewidth=1.6, label=row.entry
        )
    axes.set_xticks(angles, tasks)
    axes.tick_params(axis="x", labelcolor=INK, pad=8)
    axes.set_rlabel_position(180 / len(tasks))
    axes.set(ylim=(lowest(rows), 100), yticks=[20, 40, 60, 80, 100])
    axes.tick_params(axis="y", labelcolor=MUTED, labelsize=7)
    axes.spines["polar"].set_visible(False)
    figure.legend(loc="outside lower center", ncols=3)
    return to_svg(figure)


def _chosen(rows: list[Row]) -> list[tuple[Row, str, str]]:
    """Choose the lines: the references, the two best single models, the best with parts per task."""
    references = list(zip(in_group(rows, "reference"), (":", "--"), strict=False))
    lines = [(row, COLOURS["reference"], style) for row, style in references]
    ranked = sorted(in_group(rows, "single"), key=lambda row: -row.scores.mean)
    lines += list(zip(ranked[:2], (COLOURS["single"], OTHERS[0]), ("-", "-"), strict=False))
    with_parts = best(in_group(rows, "parts"))
    return [*lines, (with_parts, COLOURS["parts"], "-")] if with_parts else lines


def learned_rows(rows: Sequence[Row]) -> list[Row]:
    """Return the entries that apply learned values."""
    return [row for row in rows if "learned" in row.scores.profile]


def learning_curves(rows: Sequence[Row]) -> str:
    """Draw the loss on the fixed examples against the step, and mark the values that each entry was merged by."""
    figure, axes = canvas(5.2, 3.4)
    for row, (colour, style) in zip(learned_rows(rows), cycle(LINES), strict=False):
        trace = row.scores.profile["learned"]
        steps, losses = zip(*((check["step"], check["loss"]) for check in trace["checks"]), strict=True)
        axes.plot(steps, losses, style, color=colour, linewidth=1.4, label=row.entry)
        best = steps.index(trace["best_step"])
        axes.plot(steps[best], losses[best], "o", color=colour, markersize=4)
    axes.set(xlabel="step", ylabel="loss on the fixed examples")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid()
    axes.legend()
    return to_svg(figure)
