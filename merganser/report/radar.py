"""A radar plot of the references and the best entries over the tasks."""

import math
from collections.abc import Sequence
from typing import cast

from matplotlib.figure import Figure
from matplotlib.projections.polar import PolarAxes

from merganser.report.rows import Row, best, in_group, lowest
from merganser.report.style import COLOURS, INK, MUTED, OTHERS, to_svg


def radar(rows: list[Row], tasks: Sequence[str]) -> str:
    """Draw the references and the best entries of each group over the tasks."""
    figure = Figure(figsize=(4.6, 4.6), layout="constrained")
    axes = cast(PolarAxes, figure.add_subplot(projection="polar"))
    axes.set_theta_offset(math.pi / 2)
    axes.set_theta_direction(-1)
    angles = [2 * math.pi * i / len(tasks) for i in range(len(tasks))]
    for row, colour, line in _lines(rows):
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


def _lines(rows: list[Row]) -> list[tuple[Row, str, str]]:
    """Choose the lines: the references, the two best single models, the best with parts per task."""
    references = list(zip(in_group(rows, "reference"), (":", "--"), strict=False))
    lines = [(row, COLOURS["reference"], style) for row, style in references]
    ranked = sorted(in_group(rows, "single"), key=lambda row: -row.scores.mean)
    lines += list(zip(ranked[:2], (COLOURS["single"], OTHERS[0]), ("-", "-"), strict=False))
    with_parts = best(in_group(rows, "parts"))
    return [*lines, (with_parts, COLOURS["parts"], "-")] if with_parts else lines
