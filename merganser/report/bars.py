"""Each entry's mean score as a bar."""

from collections.abc import Sequence
from itertools import groupby

from merganser.report.rows import Row, lowest
from merganser.report.style import COLOURS, INK, MUTED, canvas, to_svg

HEADING = 0.9  # the room of a family's name, in bars


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
    for family, members in groupby(rows, key=lambda row: row.family):
        headings.append((place, family))
        place += HEADING
        for _ in members:
            places.append(place)
            place += 1
    return places, headings
