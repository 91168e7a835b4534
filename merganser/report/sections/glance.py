"""The comparison at a glance: plots of the entries' scores and costs."""

import math
from collections.abc import Sequence
from itertools import cycle, groupby
from typing import cast

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.projections.polar import PolarAxes
from matplotlib.ticker import LogLocator, MaxNLocator

from merganser.report.comparison import Comparison
from merganser.report.formats import Wording, sentence
from merganser.report.plots import COLOURS, INK, LINES, MUTED, OTHERS, canvas, log_scale, place_labels, to_svg
from merganser.report.rows import Row, best, front, in_group, lowest
from merganser.report.sections import Section

FONT = 7.5  # of the names of points
LEADER = {"arrowstyle": "-", "color": MUTED, "linewidth": 0.5, "shrinkA": 0, "shrinkB": 3}
HEADING = 0.9  # the room of a family's name, in bars
LOOKS = [(colour, style) for style in LINES for colour in (COLOURS["single"], COLOURS["parts"], *OTHERS)]


def plots(comparison: Comparison, wording: Wording) -> dict[str, str]:
    """Plot the scores by entry, by task and over costs, and the losses of learned entries."""
    rows, tasks = comparison.shown, comparison.tasks
    drawn = {"scores": score_bars(rows, tasks), "memory": against_memory(rows), "time": against_time(rows)}
    if len(tasks) >= 3:
        drawn["radar"] = radar(rows, tasks)
    if learned_rows(rows):
        drawn["learning"] = learning_curves(rows)
    return drawn


def score_bars(rows: list[Row], tasks: Sequence[str]) -> str:
    """Plot each entry's mean score as a bar below its family's name, with one dot per task."""
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
        axes.annotate(sentence(family), (0.5, place), va="center", fontsize=7.5, color=MUTED)
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
    """Plot the references and the best entries of each group over the tasks."""
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
    """Choose the lines of the radar: the references, the two best single models, the best with parts per task."""
    references = list(zip(in_group(rows, "reference"), (":", "--"), strict=False))
    lines = [(row, COLOURS["reference"], style) for row, style in references]
    ranked = sorted(in_group(rows, "single"), key=lambda row: -row.scores.mean)
    lines += list(zip(ranked[:2], (COLOURS["single"], OTHERS[0]), ("-", "-"), strict=False))
    with_parts = best(in_group(rows, "parts"))
    return [*lines, (with_parts, COLOURS["parts"], "-")] if with_parts else lines


def learned_rows(rows: Sequence[Row]) -> list[Row]:
    """Return the entries with values learned step by step."""
    return [row for row in rows if row.scores.profile.get("learned", {}).get("checks")]


def learning_curves(rows: Sequence[Row]) -> str:
    """Plot the loss on the fixed examples over the steps, and mark the values that the entry uses."""
    figure, axes = canvas(5.2, 3.4)
    for row, (colour, style) in zip(learned_rows(rows), cycle(LOOKS), strict=False):
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


def against_memory(rows: list[Row]) -> str:
    """Plot the mean score over the additional memory rate."""
    figure, axes = _axes("additional memory per task, % of the merged parameters", rows)
    values = [100 * row.amr for row in rows]
    axes.set_xscale("symlog", linthresh=1, linscale=0.6)
    axes.set_xlim(-0.12, max(400, 2 * max(values)))
    axes.set_xticks([0, 1, 10, 100], ["0", "1", "10", "100"])
    _scatter(axes, rows, values)
    return to_svg(figure)


def against_time(rows: list[Row]) -> str:
    """Plot the mean score over the wall time of the merge and of the work on data for it."""
    figure, axes = _axes("wall time of the merge and its work on data, s", rows)
    values = [row.seconds for row in rows]
    if log_scale(axes, "x", values):
        low, high = min(values) / 1.5, max(values) * 3
        axes.set_xlim(low, high)
        axes.xaxis.set_major_locator(LogLocator(subs=_marked(high / low)))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.xaxis.set_minor_formatter("")
    _scatter(axes, rows, values)
    return to_svg(figure)


def _marked(span: float) -> tuple[int, ...]:
    """Return the multiples of powers of ten that a logarithmic axis marks: at least two, and few."""
    return (1, 2, 3, 5) if span < 30 else (1, 3) if span < 300 else (1,)


def named(rows: Sequence[Row], costs: Sequence[float]) -> list[int]:
    """Choose the points to label: references, the best of each family, and the Pareto front."""
    chosen = {row.entry for row in rows if row.group == "reference"}
    for family in {row.about.family for row in rows}:
        leader = best([row for row in rows if row.about.family == family])
        chosen |= {leader.entry} if leader else set()
    chosen |= {row.entry for row in front(rows, costs)}
    return [index for index, row in enumerate(rows) if row.entry in chosen]


def _height(row: Row) -> float:
    return 100 * row.scores.mean


def _axes(label: str, rows: list[Row]) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(5.2, 3.8))
    axes = figure.add_axes((0.1, 0.13, 0.88, 0.85))
    axes.set(xlabel=label, ylabel=f"mean {rows[0].wording.axis}")
    axes.tick_params(axis="y", labelcolor=MUTED)
    axes.grid()
    return figure, axes


def _scatter(axes: Axes, rows: list[Row], values: list[float]) -> None:
    """Plot the mean score over a cost whose scale is set; name the points that `named` chooses."""
    heights = [_height(row) for row in rows]
    margin = 0.06 * (max(heights) - min(heights) or 1)
    axes.set_ylim(min(heights) - margin, max(heights) + margin)
    axes.scatter(values, heights, s=26, color=[COLOURS[row.group] for row in rows], alpha=0.85, linewidths=0, zorder=3)
    line = _draw_front(axes, rows, values)
    scale = 72 / axes.figure.dpi
    points, corners = (_in_points(axes, each, scale) for each in (list(zip(values, heights, strict=True)), line))
    chosen = named(rows, values)
    others = [point for index, point in enumerate(points) if index not in chosen]
    widths = [0.58 * FONT * len(rows[index].entry) for index in chosen]
    places = place_labels([points[index] for index in chosen], widths, axes.bbox.width * scale, others, corners)
    for index, place in zip(chosen, places, strict=True):
        moved = abs(place.y - points[index][1]) > 2
        axes.annotate(
            rows[index].entry,
            points[index],
            xytext=place,
            xycoords="axes points",
            textcoords="axes points",
            fontsize=FONT,
            va="center",
            arrowprops=LEADER if moved else None,
        )


def _in_points(axes: Axes, data: Sequence[tuple[float, float]], scale: float) -> list[tuple[float, float]]:
    """Return the positions of data in the axes, in points."""
    if not data:
        return []
    pixels = axes.transData.transform(data) - axes.bbox.min
    return [(float(x) * scale, float(y) * scale) for x, y in pixels]


def _draw_front(axes: Axes, rows: Sequence[Row], costs: Sequence[float]) -> list[tuple[float, float]]:
    """Plot the Pareto front as the best score at each cost, and a ring around each entry; return its line's corners."""
    cost = {row.entry: value for row, value in zip(rows, costs, strict=True)}
    best_first = front(rows, costs)
    if not best_first:
        return []
    places, heights = [cost[row.entry] for row in best_first], [_height(row) for row in best_first]
    end = axes.get_xlim()[1]
    axes.step([*places, end], [*heights, heights[-1]], where="post", color=INK, linewidth=0.9, alpha=0.6, zorder=2)
    axes.scatter(places, heights, s=62, facecolors="none", edgecolors=INK, linewidths=0.9, zorder=4)
    corners = [(places[0], heights[0])]
    for place, height in zip([*places[1:], end], [*heights[1:], heights[-1]], strict=True):
        corners += [(place, corners[-1][1]), (place, height)]
    return corners


SECTION = Section(plots=plots)
