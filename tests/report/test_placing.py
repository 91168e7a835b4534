"""Where panels go, held to matplotlib's own constrained layout."""

import io
from collections.abc import Callable
from itertools import combinations

import matplotlib
import numpy as np
import pytest
from matplotlib.backends.backend_svg import RendererSVG
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.transforms import Bbox

from merganser.report import placing
from merganser.report.placing import place_panels
from merganser.report.style import POINTS, STYLE, to_svg

NEAR = 0.1  # inches


def panels() -> Figure:
    """Draw two rows of panels that share an axis, one panel left out, and a legend below them."""
    made = Figure(figsize=(6, 4), dpi=POINTS)
    grid = made.subplots(2, 3, sharey=True)
    for number, axes in enumerate(grid.ravel()):
        axes.plot([1, 20_000, 3], label="one" if number else "other")
        axes.set_title("a title\nof two lines" if number == 1 else "one line", loc="left", fontsize=8.5)
    grid[0, 0].set(ylabel="a label")
    grid[0, 2].set_xticks([0, 1, 2], ["a long name", "another", "b"], rotation=40, ha="right", rotation_mode="anchor")
    grid[1, 2].set_visible(False)
    made.legend(*grid[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
    return made


def one() -> Figure:
    """Draw one panel with a text beyond its edge."""
    made = Figure(figsize=(5.2, 1.4), dpi=POINTS)
    axes = made.add_subplot()
    axes.barh([0, 1], [30, 50])
    axes.annotate("50.0", (101.5, 1), va="center", annotation_clip=False)
    axes.set(xlim=(0, 100), xlabel="accuracy, %")
    axes.set_yticks([0, 1], ["a", "a long name"])
    return made


def squares() -> Figure:
    """Draw two panels whose cells are squares."""
    made = Figure(figsize=(10.8, 5.2), dpi=POINTS)
    for axes in made.subplots(1, 2):
        axes.set(xlim=(0, 8), ylim=(8, 0), aspect="equal", title="cells")
    return made


def polar() -> Figure:
    """Draw lines about a centre."""
    made = Figure(figsize=(4.6, 4.6), dpi=POINTS)
    axes = made.add_subplot(projection="polar")
    axes.plot([0, 2, 4], [1, 2, 3], label="entry")
    axes.set_xticks([0, 2, 4], ["dark", "light", "a long name"])
    made.legend(loc="outside lower center")
    return made


def changing() -> Figure:
    """Draw a panel that has ticks of more digits where it goes than where it is measured first."""
    made = Figure(figsize=(3.2, 2), dpi=POINTS)
    axes = made.add_subplot()
    axes.plot([0, 2.5])
    axes.set(ylabel="Spearman")
    return made


def renderer(figure: Figure) -> RendererSVG:
    return RendererSVG(figure.bbox.width, figure.bbox.height, io.StringIO())


def places(figure: Figure) -> np.ndarray:
    """Return the boxes of the panels that are drawn, in inches (P, 4)."""
    boxes = [axes.get_position().extents for axes in figure.axes if axes.get_visible()]
    return np.array(boxes) * np.tile(figure.get_size_inches(), 2)


def placed(figure: Figure) -> None:
    place_panels(figure, renderer(figure))


def trouble(figure: Figure) -> list[object]:
    """Return what stands beyond the figure's edge, and the pairs that overlap."""
    shown = [each for each in [*figure.axes, *figure.legends] if each.get_visible()]
    boxes = [box for each in shown if (box := each.get_tightbbox(renderer(figure)))]
    whole = figure.bbox.padded(0.5)
    beyond = [box for box in boxes if tuple(Bbox.union([whole, box]).extents) != tuple(whole.extents)]
    return [*beyond, *(pair for pair in combinations(boxes, 2) if Bbox.intersection(*pair))]


EACH = pytest.mark.parametrize("make", [panels, one, squares, polar, changing])


@EACH
def test_panels_go_nearly_where_matplotlibs_constrained_layout_puts_them(make: Callable[[], Figure]) -> None:
    with matplotlib.rc_context(STYLE):
        own, constrained = make(), make()
        ConstrainedLayoutEngine().execute(constrained)
        before, expected = places(own), places(constrained)
        placed(own)
        assert places(own) == pytest.approx(expected, abs=NEAR)
        assert before != pytest.approx(expected, abs=NEAR)


@EACH
def test_nothing_is_cut_off_or_lies_over_another_panel_or_the_legend(make: Callable[[], Figure]) -> None:
    with matplotlib.rc_context(STYLE):
        assert trouble(panels())
        figure = make()
        placed(figure)
        assert not trouble(figure)


def test_a_panel_that_gets_other_ticks_is_measured_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placing, "PASSES", 1)
    with matplotlib.rc_context(STYLE):
        figure = changing()
        placed(figure)
        assert trouble(figure)


def test_a_panel_is_seen_whatever_the_length_of_its_labels() -> None:
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(5.2, 2), dpi=POINTS)
        figure.add_subplot().set_yticks([0, 1], ["a", 99 * "a long name "])
        placed(figure)
        assert (places(figure)[0, 2:] - places(figure)[0, :2] > 0.1).all()


def test_a_figure_is_drawn_where_it_was_placed_and_the_same_again() -> None:
    with matplotlib.rc_context(STYLE):
        drawn, saved = to_svg(panels()), io.StringIO()
        figure = panels()
        placed(figure)
        figure.savefig(saved, format="svg", transparent=True, metadata={"Date": None})
        assert drawn == saved.getvalue() == to_svg(panels())
