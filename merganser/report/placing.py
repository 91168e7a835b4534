"""Where the panels of a figure go: all of one size, with room for what stands around each.

It is matplotlib's constrained layout for figures of one grid. That measures each panel twice, and its spines with it:
half of the time of a report went into it.
"""

from collections.abc import Sequence
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backend_bases import RendererBase
from matplotlib.figure import Figure
from matplotlib.spines import Spine
from matplotlib.transforms import Bbox

PAD = 3 / 72  # inches, about each panel with what stands around it, and about a legend
LEFT, ABOVE, BELOW = 0.5, 0.25, 0.3  # inches that nearly suffice there for most panels
LEAST = 0.1  # of the figure: what panels keep, whatever the length of their labels
PASSES = 2


class Panel(NamedTuple):
    """A panel, and its place in the grid from above and from the left."""

    axes: Axes
    row: int
    column: int


class Room(NamedTuple):
    """What each column and each row takes beside its panels, and a legend below all, in shares of the figure."""

    left: list[float]
    right: list[float]
    top: list[float]
    bottom: list[float]
    below: float


def place_panels(figure: Figure, renderer: RendererBase) -> None:
    """Place the panels of the figure's one grid, if it has one; a legend outside them stands below.

    They are measured where they nearly go, and a second time if other ticks fit where they went, or if a panel that
    keeps its proportions fills its place otherwise.
    """
    specs = [(axes, spec) for axes in figure.axes if axes.get_visible() and (spec := axes.get_subplotspec())]
    if not specs:
        return
    panels = [Panel(axes, spec.rowspan.start, spec.colspan.start) for axes, spec in specs]
    for axis in _axis_of(panels):
        if not axis.get_label_text():
            axis.set_label_coords(0, 0)  # else its place is found each time, from all ticks
    room = _guess(figure, renderer, *specs[0][1].get_gridspec().get_geometry())
    _move(panels, room)
    for _ in range(PASSES):
        ticks = _ticks(panels)
        _move(panels, _measure(panels, room, figure, renderer))
        if _ticks(panels) == ticks and all(panel.axes.get_aspect() == "auto" for panel in panels):
            return


def _guess(figure: Figure, renderer: RendererBase, rows: int, columns: int) -> Room:
    width, height = figure.get_size_inches()
    legends = [legend.get_window_extent(renderer).height / figure.bbox.height for legend in figure.legends]
    below = max((each + 2 * PAD / height for each in legends), default=0.0)
    left = [LEFT / width, *[PAD / width] * (columns - 1)]
    return Room(left, [PAD / width] * columns, [ABOVE / height] * rows, [BELOW / height] * rows, below)


def _axis_of(panels: Sequence[Panel]) -> list[Axis]:
    return [axis for panel in panels for axis in (panel.axes.xaxis, panel.axes.yaxis)]


def _ticks(panels: Sequence[Panel]) -> list[list[float]]:
    return [list(axis.get_ticklocs()) for axis in _axis_of(panels)]


def _measure(panels: Sequence[Panel], guess: Room, figure: Figure, renderer: RendererBase) -> Room:
    """Return the room that the panels need where they are."""
    across, up = PAD / figure.get_size_inches()
    left, right = [across for _ in guess.left], [across for _ in guess.right]
    top, bottom = [up for _ in guess.top], [up for _ in guess.bottom]
    for axes, row, column in panels:
        own, whole = axes.get_position(original=True), _with_labels(axes, renderer)
        left[column] = max(left[column], across + own.x0 - whole.x0)
        right[column] = max(right[column], across + whole.x1 - own.x1)
        top[row] = max(top[row], up + whole.y1 - own.y1)
        bottom[row] = max(bottom[row], up + own.y0 - whole.y0)
    return Room(left, right, top, bottom, guess.below)


def _move(panels: Sequence[Panel], room: Room) -> None:
    width = max(LEAST, 1 - sum(room.left) - sum(room.right)) / len(room.left)
    height = max(LEAST, 1 - sum(room.top) - sum(room.bottom) - room.below) / len(room.top)
    for axes, row, column in panels:
        x = sum(room.left[: column + 1]) + sum(room.right[:column]) + column * width
        y = 1 - sum(room.top[: row + 1]) - sum(room.bottom[:row]) - (row + 1) * height
        axes.set_position((x, y, width, height))


def _with_labels(axes: Axes, renderer: RendererBase) -> Bbox:
    """Return the box of a panel with its labels, in shares of the figure."""
    others = [each for each in axes.get_default_bbox_extra_artists() if not isinstance(each, Spine)]
    found = axes.get_tightbbox(renderer, bbox_extra_artists=others, for_layout_only=True)
    assert found  # as it is visible
    return found.transformed(axes.figure.transFigure.inverted())
