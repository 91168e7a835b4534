"""Plots as SVG text."""

import io

from matplotlib.figure import Figure

from merganser.report.plots import plot_style, to_svg


def figure() -> Figure:
    """Draw two panels that share an axis, and a legend below them, for which a layout makes room."""
    made = Figure(figsize=(6, 3), layout="constrained")
    left, right = made.subplots(1, 2, sharey=True)
    left.plot([1, 20_000, 3], label="one")
    left.set(ylabel="a label", title="a title\nof two lines")
    right.plot([3, 1, 2], label="other")
    right.set_xticks([0, 1, 2], ["a long name", "another", "b"], rotation=40, ha="right")
    made.legend(loc="outside lower center", ncols=2)
    return made


def test_a_figure_laid_out_once_is_what_matplotlib_saves() -> None:
    with plot_style():
        saved = io.StringIO()
        figure().savefig(saved, format="svg", transparent=True, metadata={"Date": None})
        assert to_svg(figure()) == saved.getvalue()
        unplaced = figure()
        unplaced.set_layout_engine("none")
        assert to_svg(unplaced) != saved.getvalue()  # so the layout can be seen in it
