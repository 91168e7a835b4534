"""Mean scores against what an entry costs, and the Pareto front: what no other entry beats for less."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from merganser.report.labels import place_labels
from merganser.report.rows import Row, best, front
from merganser.report.style import COLOURS, INK, MUTED, to_svg

FONT = 7.5  # of the names of points
LEADER = {"arrowstyle": "-", "color": MUTED, "linewidth": 0.5, "shrinkA": 0, "shrinkB": 3}


def against_memory(rows: list[Row]) -> str:
    """Draw the mean score against the additional memory rate."""
    figure, axes = _axes("additional memory per task, % of the merged parameters", rows)
    values = [100 * row.amr for row in rows]
    axes.set_xscale("symlog", linthresh=1, linscale=0.6)
    axes.set_xlim(-0.12, max(400, 2 * max(values)))
    axes.set_xticks([0, 1, 10, 100], ["0", "1", "10", "100"])
    _scatter(axes, rows, values)
    return to_svg(figure)


def against_time(rows: list[Row]) -> str:
    """Draw the mean score against the wall time of the merge and of what was done on data for it."""
    figure, axes = _axes("wall time of the merge and what it learned or measured on data, s", rows)
    values = [row.seconds for row in rows]
    axes.set_xscale("log")
    axes.set_xlim(min(values) / 1.5, max(values) * 3)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.xaxis.set_minor_formatter("")
    _scatter(axes, rows, values)
    return to_svg(figure)


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
    """Plot the mean score against a cost whose scale is set; name the points that `named` chooses."""
    heights = [_height(row) for row in rows]
    margin = 0.06 * (max(heights) - min(heights) or 1)
    axes.set_ylim(min(heights) - margin, max(heights) + margin)
    axes.scatter(values, heights, s=26, color=[COLOURS[row.group] for row in rows], alpha=0.85, linewidths=0, zorder=3)
    _draw_front(axes, rows, values)
    scale = 72 / axes.figure.dpi
    pixels = axes.transData.transform(list(zip(values, heights, strict=True))) - axes.bbox.min
    points = [(float(x) * scale, float(y) * scale) for x, y in pixels]
    chosen = named(rows, values)
    others = [point for index, point in enumerate(points) if index not in chosen]
    widths = [0.58 * FONT * len(rows[index].entry) for index in chosen]
    places = place_labels([points[index] for index in chosen], widths, axes.bbox.width * scale, others)
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


def _draw_front(axes: Axes, rows: Sequence[Row], costs: Sequence[float]) -> None:
    """Draw the Pareto front as the steps of the best score for at most a cost, and a ring about each entry on it."""
    cost = {row.entry: value for row, value in zip(rows, costs, strict=True)}
    best_first = front(rows, costs)
    if not best_first:
        return
    places, heights = [cost[row.entry] for row in best_first], [_height(row) for row in best_first]
    end = axes.get_xlim()[1]
    axes.step([*places, end], [*heights, heights[-1]], where="post", color=INK, linewidth=0.9, alpha=0.6, zorder=2)
    axes.scatter(places, heights, s=62, facecolors="none", edgecolors=INK, linewidths=0.9, zorder=4)
