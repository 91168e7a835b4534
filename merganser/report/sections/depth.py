"""Measures of the tasks over the depth of the network, and details of its middle matrix."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from merganser.report.curves import LineStyle, over_depth
from merganser.report.formats import Tables, Wording, short_names
from merganser.report.heatmaps import Shades, fill_cells
from merganser.report.plots import COLOURS, INK, MUTED, OTHERS, canvas, to_svg
from merganser.report.scores import BY_LAYER, MergeMeasures, grid
from merganser.report.sections import Section

BLUE, ORANGE = COLOURS["single"], COLOURS["parts"]
# each figure's axis, and its lines
FIGURES = {
    "interference": (
        "interference (STI)",
        (LineStyle("interference", "tasks' own bases"), LineStyle("interference_after_tsv_m", "after TSV-M", ORANGE)),
    ),
    "procrustes": (
        "Procrustes error",
        (LineStyle("procrustes_u", "left vectors"), LineStyle("procrustes_v", "right vectors", ORANGE)),
    ),
    "overlap": (
        "mean over pairs",
        (
            LineStyle("cosine", "cosine", OTHERS[0]),
            LineStyle("row_spaces", "row spaces, own deltas"),
            LineStyle("row_spaces_centred", "row spaces, centred deltas", ORANGE),
        ),
    ),
    "agreement": (
        "sign agreement",
        (
            LineStyle("agreement_weights", "weights"),
            LineStyle("agreement_weights_pruned", "weights, pruned", BLUE, "--"),
            LineStyle("agreement_joint", "joint basis", ORANGE),
            LineStyle("agreement_joint_pruned", "joint basis, pruned", ORANGE, "--"),
            LineStyle("agreement_joint_pruned_back", "pruned in the joint basis, back in the weights", OTHERS[1], ":"),
        ),
    ),
    "reconstruction": (
        "relative error",
        (LineStyle("error", "own deltas"), LineStyle("error_centred", "centred deltas", ORANGE)),
    ),
    "effective_rank": ("effective rank", (LineStyle("effective_rank", "mean over tasks"),)),
}
FIRST = 0.5  # the least share that a majority can have
WIDE = 5.2  # inches


def tables(measured: MergeMeasures) -> Tables:
    """Return every measure of each matrix."""
    columns = {name: measured.by_layer(name) for name in BY_LAYER}
    lines = [
        [name, *(column[name] for column in columns.values()), depth]
        for depth, name in enumerate(measured.matrices, start=1)
    ]
    return {"plots/layers.csv": (["layer", *columns, "depth"], lines)}  # DVC draws lines over numbers only


def plots(measured: MergeMeasures, wording: Wording) -> dict[str, str]:
    """Plot every measure over the depth, and details of the middle matrix."""
    over = {
        name: over_depth([(line, measured.by_layer(line.measure)) for line in lines], measured.matrices, label)
        for name, (label, lines) in FIGURES.items()
        if measured.matrices
    }
    return over | draw_spaces(measured)


def draw_spaces(measured: MergeMeasures) -> dict[str, str]:
    """Plot the details of the middle matrix, and the signs of all matrices; return SVG text by name."""
    plots = {}
    middle = middle_matrix(measured)
    if middle and any(measured.at(middle, "dropped", "plain")):
        plots["dropped"] = dropped(measured.at(middle, "dropped"))
    histograms = [bins for name in measured.matrices if (bins := measured.at(name, "sign_agreement", "histograms"))]
    if histograms and np.sum([bins["weights"] for bins in histograms]):
        plots["signs"] = sign_histogram(histograms)
    if middle and len(measured.tasks) > 1 and sum(measured.at(middle, "products")["each"]):
        plots["products"] = products(measured.at(middle, "products"), measured.tasks)
    return plots


def middle_matrix(measured: MergeMeasures) -> str | None:
    """Return the matrix at the middle of the depth; None if there is none."""
    return measured.matrices[len(measured.matrices) // 2] if measured.matrices else None


def middle_name(measured: MergeMeasures) -> str | None:
    """Return its short name."""
    names = dict(zip(measured.matrices, short_names(measured.matrices), strict=True))
    return names.get(middle_matrix(measured) or "")


def dropped(shares: Mapping[str, Sequence[Sequence[float]]]) -> str:
    """Plot the share of entries that pruning drops from each basis vector, a line per task and their mean."""
    figure, axes = canvas(WIDE, 3.0)
    lines = (("plain", "as they are", COLOURS["parts"]), ("renormalised", "renormalised", COLOURS["single"]))
    for name, label, colour in lines:
        values = 100 * np.array(shares[name])
        places = 100 * (np.arange(values.shape[1]) + 0.5) / values.shape[1]
        axes.plot(places, values.T, color=colour, linewidth=0.6, alpha=0.6)
        axes.plot(places, values.mean(0), color=colour, linewidth=1.8, label=label)
    axes.set(xlabel="basis vectors, from the largest singular value on, %", ylabel="entries dropped, %", ylim=(-3, 103))
    axes.grid(axis="y")
    figure.legend(loc="outside lower center", ncols=2)
    return to_svg(figure)


def sign_histogram(histograms: Sequence[Mapping[str, Sequence[int]]]) -> str:
    """Plot how many entries of all matrices have which share of the majority sign, in both bases."""
    figure, axes = canvas(WIDE, 3.0)
    bases = (("weights", "weights", COLOURS["single"]), ("joint", "joint basis", COLOURS["parts"]))
    for number, (name, label, colour) in enumerate(bases):
        counts = np.sum([each[name] for each in histograms], axis=0)
        edges, width = np.linspace(100 * FIRST, 100, len(counts) + 1, retstep=True)
        places = edges[:-1] + width * (0.3 + 0.4 * number)
        axes.bar(places, 100 * counts / counts.sum(), 0.36 * width, color=colour, alpha=0.85, label=label)
    axes.set(xlabel="tasks with the majority's sign, %", ylabel="of the entries, %", xlim=(100 * FIRST, 100))
    axes.grid(axis="y")
    figure.legend(loc="outside lower center", ncols=2)
    return to_svg(figure)


def products(numbers: Mapping[str, Any], tasks: Sequence[str]) -> str:
    """Plot U^T U and V^T V without their diagonals of ones, task by task."""
    figure = Figure(figsize=(10.8, 5.2), layout="constrained")
    pair = [np.where(np.eye(sum(numbers["each"]), dtype=bool), np.nan, grid(numbers[side])) for side in ("u", "v")]
    size = max(float(np.nanmax(np.abs(each))) for each in pair)
    for axes, values, title in zip(figure.subplots(1, 2), pair, ("UᵀU", "VᵀV"), strict=True):
        fill_cells(axes, values, Shades(-size, size))
        axes.set_title(f"{title}, up to ±{size:.2f}", fontsize=9, color=INK, loc="left")
        _name_blocks(axes, numbers["each"], tasks)
    return to_svg(figure)


def _name_blocks(axes: Axes, sizes: Sequence[int], tasks: Sequence[str]) -> None:
    """Mark the borders between the tasks' vectors."""
    ends = np.cumsum(sizes)
    middles = ends - np.array(sizes) / 2
    axes.set_xticks(middles, tasks, rotation=60, ha="right", rotation_mode="anchor")
    axes.set_yticks(middles, tasks)
    axes.tick_params(labelsize=8)
    axes.tick_params(axis="x", labelcolor=MUTED)
    for end in ends[:-1]:
        axes.axvline(end, color=MUTED, linewidth=0.4)
        axes.axhline(end, color=MUTED, linewidth=0.4)


def page(measured: MergeMeasures) -> dict[str, Any]:
    """Return each matrix's name, short name and measures, by depth."""
    columns = [measured.by_layer(measure) for measure in BY_LAYER]
    names = zip(measured.matrices, short_names(measured.matrices), strict=True)
    layers = [(name, short, [column[name] for column in columns]) for name, short in names]
    return {"by_layer": list(BY_LAYER), "layers": layers, "middle": middle_name(measured)}


SECTION = Section(read=lambda comparison: comparison.measured, tables=tables, plots=plots, page=page)
