"""The plots of the studies: scores against the number of tasks, the rank, values of a parameter, and steps."""

from collections.abc import Sequence
from math import inf, log

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from merganser.report.ablations import Ablated
from merganser.report.matched import Matched
from merganser.report.studies import StudyResults
from merganser.report.style import COLOURS, INK, MUTED, OTHERS, STYLE, canvas, to_svg
from merganser.report.sweeps import Curve
from merganser.report.wording import Wording

LINES = ("-", "--", ":")
MARKERS = ("o", "s", "^")  # beside LINES, for a lone dot has no line
PALETTE = (COLOURS["single"], COLOURS["parts"], *OTHERS, COLOURS["reference"])
WIDE = 20  # times the smallest value, beyond which values stand on a logarithmic axis
RELATIVE = "% of the individual models"  # on an axis
NEAR = 0.055  # of an axis's length, below which two labels would touch
DODGE = 0.09  # between the entries' dots of one size, in tasks


def draw_studies(results: StudyResults, wording: Wording) -> dict[str, str]:
    """Draw every study that found something; return SVG text by name."""
    plots = {}
    with matplotlib.rc_context(STYLE):
        if results.points:
            plots["study_tasks"] = against_tasks(results, wording)
        if results.ranks:
            plots["study_rank"] = against_rank(results, wording)
        for curve in results.curves:
            plots[f"study_sweep-{curve.name}"] = against_values(curve, wording.axis)
        if results.matched.curves:
            plots["study_budgets"] = against_bytes(results.matched, wording)
        for ablated in results.ablations:
            plots[f"study_ablation-{ablated.name}"] = by_step(ablated, wording)
    return plots


def against_tasks(results: StudyResults, wording: Wording) -> str:
    """Draw each subset's score as a dot, each entry's mean as a line with one standard deviation about it."""
    figure, axes = canvas(5.2, 3.8)
    middle = (len(results.entries) - 1) / 2
    for index, entry in enumerate(results.entries):
        colour, style = PALETTE[index % len(PALETTE)], LINES[index // len(PALETTE) % len(LINES)]
        shift = DODGE * (index - middle)
        dots = [point for point in results.points if point.entry == entry]
        axes.scatter(
            [p.tasks + shift for p in dots], [100 * p.value for p in dots], s=9, color=colour, alpha=0.5, linewidths=0
        )
        means = results.by_entry[entry]
        places, heights = [s.tasks + shift for s in means], [100 * s.mean for s in means]
        spread = [100 * (s.deviation or 0) for s in means]
        low, high = ([h + sign * d for h, d in zip(heights, spread, strict=True)] for sign in (-1, 1))
        axes.fill_between(places, low, high, color=colour, alpha=0.12, linewidth=0)
        axes.plot(places, heights, color=colour, linestyle=style, linewidth=1.7, label=entry)
    axes.set_xticks(results.sizes)
    axes.set(xlabel="tasks merged", ylabel=RELATIVE if results.normalised else wording.axis)
    axes.grid(axis="y")
    figure.legend(loc="outside lower center", ncols=min(4, len(results.entries)))
    return to_svg(figure)


def against_rank(results: StudyResults, wording: Wording) -> str:
    """Draw the mean score over the share of the rank, each task as a thin line, the whole models' mean across."""
    figure, axes = canvas(5.2, 3.8)
    fractions = results.fractions
    for task in dict.fromkeys(point.task for point in results.ranks):
        _rank_line(axes, fractions, [p.score for p in results.ranks if p.task == task], MUTED, 0.6, "one task")
    means = [results.mean_at(fraction) for fraction in fractions]
    axes.axhline(100 * means[-1], color=INK, linewidth=0.8, linestyle=":", label="fine-tuned models, mean")
    _rank_line(axes, fractions, means, COLOURS["single"], 1.9, "mean over tasks")
    axes.set_xscale("log")
    axes.set_xticks(fractions, [f"{100 * fraction:g}" for fraction in fractions])
    axes.minorticks_off()
    axes.set(xlabel="singular values kept of each task's own delta, %", ylabel=wording.axis)
    axes.grid(axis="y")
    _one_legend(figure, axes)
    return to_svg(figure)


def against_values(curve: Curve, ylabel: str) -> str:
    """Draw the mean score over a parameter's values with a band of one standard error, each task as a thin line."""
    figure, axes = canvas(5.2, 3.4)
    places, means = curve.places, [100 * point.score for point in curve.points]
    for task in curve.tasks:
        heights = [100 * point.by_task[task]["value"] for point in curve.points]
        axes.plot(places, heights, color=MUTED, linewidth=0.6, marker="o", markersize=1.5, label="one task")
    errors = [100 * (point.stderr or 0) for point in curve.points]
    low, high = ([m + sign * e for m, e in zip(means, errors, strict=True)] for sign in (-1, 1))
    axes.fill_between(places, low, high, color=COLOURS["single"], alpha=0.2, linewidth=0)
    axes.plot(places, means, color=COLOURS["single"], linewidth=1.9, marker="o", markersize=4, label="mean over tasks")
    wide = min(places) > 0 and max(places) / min(places) > WIDE
    if wide:
        axes.set_xscale("log")
    shown = legible([point.shown for point in curve.points], [*map(log, places)] if wide else places)
    axes.set_xticks(places, shown)
    axes.minorticks_off()
    axes.set(xlabel=f"{curve.parameter} of {curve.method}", ylabel=ylabel)
    axes.grid(axis="y")
    _one_legend(figure, axes)
    return to_svg(figure)


def legible(labels: Sequence[str], places: Sequence[float]) -> list[str]:
    """Empty the labels that would lie over the one before; `places`: where each stands on its axis, ascending.

    >>> legible(["0.05", "0.1", "0.2", "1"], [0.05, 0.1, 0.2, 1])
    ['0.05', '', '0.2', '1']
    """
    shown, last = [], -inf
    for label, place in zip(labels, places, strict=True):
        apart = place - last >= NEAR * (places[-1] - places[0])
        shown.append(label if apart else "")
        last = place if apart else last
    return shown


def against_bytes(matched: Matched, wording: Wording) -> str:
    """Draw each entry's mean score over the bytes that a task takes, a lone dot for one whose size is fixed."""
    figure, axes = canvas(5.2, 4.0)
    for index, (entry, points) in enumerate(matched.curves.items()):
        row, column = divmod(index, len(PALETTE))
        colour, style, dot = PALETTE[column], LINES[row % len(LINES)], MARKERS[row % len(MARKERS)]
        places, means = [100 * point.amr for point in points], [100 * point.score for point in points]
        axes.plot(places, means, color=colour, linestyle=style, linewidth=1.5, marker=dot, markersize=3.5, label=entry)
    axes.set_xscale("log")
    axes.set_xticks([100 * budget for budget in matched.budgets], [f"{100 * budget:g}" for budget in matched.budgets])
    axes.minorticks_off()
    axes.set(xlabel="bytes a task, % of the merged parameters'", ylabel=wording.axis)
    axes.grid(axis="both")
    figure.legend(loc="outside lower center", ncols=min(4, len(matched.curves)))
    return to_svg(figure)


def by_step(ablated: Ablated, wording: Wording) -> str:
    """Draw the mean score of each step as a bar with one standard error, the whole entry's across, a dot a task."""
    steps = ablated.steps
    figure, axes = canvas(5.2, 0.9 + 0.3 * len(steps))
    places, means = range(len(steps)), [100 * step.score for step in steps]
    axes.barh(places, means, 0.66, color=COLOURS["single"], alpha=0.5)
    errors = [100 * (step.stderr or 0) for step in steps]
    axes.errorbar(means, places, xerr=errors, fmt="none", ecolor=INK, elinewidth=1)
    for place, step in zip(places, steps, strict=True):
        values = [100 * step.by_task[task]["value"] for task in ablated.tasks]
        axes.scatter(values, [place] * len(values), s=8, color=INK, alpha=0.7, linewidths=0, zorder=3)
    axes.axvline(means[0], color=INK, linewidth=0.8, linestyle=":")
    axes.set_yticks(places, [step.name for step in steps])
    axes.invert_yaxis()
    axes.set(xlabel=f"{wording.axis} (bar: mean; dots: tasks)")
    axes.grid(axis="x")
    axes.spines["left"].set_visible(False)
    return to_svg(figure)


def _one_legend(figure: Figure, axes: Axes) -> None:
    """Name each kind of line once."""
    handles = dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=3)


def _rank_line(
    axes: Axes, fractions: Sequence[float], values: Sequence[float], colour: str, width: float, label: str
) -> None:
    heights = [100 * value for value in values]
    axes.plot(fractions, heights, color=colour, linewidth=width, marker="o", markersize=2 * width, label=label)
