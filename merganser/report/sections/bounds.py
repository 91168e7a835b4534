"""Papers' inequalities about merging on this comparison's deltas: both sides, and whether they hold."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from merganser.report.curves import LineStyle, over_depth
from merganser.report.formats import Wording, short_names
from merganser.report.plots import COLOURS, OTHERS
from merganser.report.scores import MergeMeasures
from merganser.report.sections import Section


class Claim(NamedTuple):
    """A claim, and its source."""

    says: str
    source: str
    of_layers: bool = True  # or of the whole vector


CLAIMS = {
    "drm_h": Claim(
        "The tasks' matrices, side by side, have singular values near √T times each task's own.", "DRM, proposition 2"
    ),
    "drm_v": Claim("The same for the matrices one above the other.", "DRM, appendix D"),
    "tsv": Claim(
        "Orthogonalising truncated bases changes them less than orthogonalising complete ones.",
        "TSV, theorem 6.1 (more than 4 tasks)",
    ),
    "star": Claim("The effect of a task's delta on another task's inputs is at most r β √r'.", "survey, on STAR"),
    "star_truncated": Claim("The same after STAR's truncation and rescaling.", "survey, on STAR"),
    "emr_masks": Claim(
        "EMR's mask brings the elected vector nearer to each task's delta.", "survey, on EMR, Dis_M ≤ Dis", False
    ),
    "emr_magnitude": Claim(
        "EMR's rescaler, as printed, brings the masked vector even nearer.", "survey, on EMR, Dis_M,λ ≤ Dis_M", False
    ),
    "emr_least_squares": Claim(
        "The same for the least-squares rescaler, used in the proof instead of the printed one.",
        "least squares; rescaler: least_squares",
        False,
    ),
}
LINES = (
    LineStyle("drm_h", "DRM, side by side"),
    LineStyle("drm_v", "DRM, one above the other", COLOURS["single"], "--"),
    LineStyle("tsv", "TSV", COLOURS["parts"]),
    LineStyle("star", "STAR, whole", OTHERS[0]),
    LineStyle("star_truncated", "STAR, truncated", OTHERS[0], "--"),
    LineStyle("emr_masks", "EMR, mask", OTHERS[1]),
)


HEADER = ("bound", "layer", "left", "right", "ratio", "holds", "claimed", "at")


class Checked(NamedTuple):
    """A claim where its bound is tightest."""

    name: str
    says: str
    source: str
    checked: int  # layers, or 1: the whole vector
    held: int
    claimed: bool  # whether the paper's conditions are met anywhere
    left: float
    right: float
    ratio: float | None  # None: to a right side of 0
    where: str


def check_claims(measured: MergeMeasures) -> list[Checked]:
    """Return each measured claim at its largest ratio of left to right side."""
    checked = []
    for name, claim in CLAIMS.items():
        sides = dict(_by_layer(measured, name)) if claim.of_layers else _whole(measured, name)
        if sides:
            layer, worst = max(sides.items(), key=lambda item: _size(item[1]))
            short = dict(zip(measured.matrices, short_names(measured.matrices), strict=True))
            where = f"{short.get(layer, layer)}: {worst['at']}" if claim.of_layers else worst["at"]
            held = sum(each["holds"] for each in sides.values())
            claimed = any(each["claimed"] for each in sides.values())
            numbers = (worst["left"], worst["right"], worst["ratio"])
            checked.append(Checked(name, claim.says, claim.source, len(sides), held, claimed, *numbers, where))
    return checked


def bound_lines(measured: MergeMeasures) -> list[tuple[Any, ...]]:
    """Return both sides of every claim in every layer, and of the whole vector: the lines of `bounds.csv`."""
    lines = []
    for name in CLAIMS:
        sides = {**_whole(measured, name), **dict(_by_layer(measured, name))}
        lines += [(name, layer, *(each[key] for key in HEADER[2:])) for layer, each in sides.items()]
    return lines


def plots(measured: MergeMeasures, wording: Wording) -> dict[str, str]:
    """Plot each claim's ratio of left to right side over the depth, if any was measured."""
    if not (measured.matrices and check_claims(measured)):
        return {}
    lines = [
        (line, {name: _ratio(measured, name, line.measure) for name in measured.matrices})
        for line in LINES
        if any(True for _ in _by_layer(measured, line.measure))
    ]
    return {"bounds": over_depth(lines, measured.matrices, "left / right", log=True)}


def _by_layer(measured: MergeMeasures, name: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for layer in measured.of_tasks["layers"]:
        bound = measured.at(layer, "bounds", name)
        if bound:
            yield layer, bound


def _whole(measured: MergeMeasures, name: str) -> dict[str, Mapping[str, Any]]:
    bound = measured.of_tasks.get("bounds", {}).get(name)
    return {"": bound} if bound else {}


def _ratio(measured: MergeMeasures, layer: str, name: str) -> float:
    """Return a ratio for a logarithmic axis: NaN if there is none."""
    bound = measured.at(layer, "bounds", name)
    return bound["ratio"] or float("nan") if bound else float("nan")


def _size(sides: Mapping[str, Any]) -> float:
    return float("inf") if sides["ratio"] is None else float(sides["ratio"])


SECTION = Section(
    read=lambda comparison: comparison.measured,
    tables=lambda measured: {"bounds.csv": (HEADER, bound_lines(measured))},
    plots=plots,
    page=lambda measured: {"claims": check_claims(measured)},
)
