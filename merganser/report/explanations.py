"""Do measures explain the score that is lost? How far each measure of a comparison goes with it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from merganser.measures.correlation import Correlation, correlate
from merganser.report.explanation_points import Points, find_points
from merganser.report.measured import Measured
from merganser.report.rows import Row
from merganser.report.studies import StudyResults


class Kind(NamedTuple):
    """A kind of points: its title, what the bootstrap draws, and what a point is."""

    title: str
    grouped: str
    about: str


KINDS = {
    "merges": Kind(
        "entries × tasks",
        "entries",
        "A point is one entry's model on one task, for entries that give one model; the measures are of its merge.",
    ),
    "errors": Kind(
        "entries with parts × tasks",
        "entries",
        "A point is one task's model as its parts give it, beside the task's own.",
    ),
    "tasks": Kind(
        "tasks",
        "tasks",
        "A point is a task: what it loses on average over all entries with one model. Measures of two tasks are means "
        "over all others.",
    ),
    "subsets": Kind(
        "subsets × entries",
        "subsets",
        "A point is one subset of the tasks, merged by one entry of the study over their number; what the entry loses "
        "on average is taken away. R(k) and I(k) are sums over the subset, centred by the mean of all tasks; they grow "
        "with the number of tasks, which stands beside them.",
    ),
}
TITLES = {
    "sar": "SAR with the merge",
    "cosine_with_merge": "cosine with the merge",
    "effective_rank_of_merge": "effective rank of the merge",
    "relative_error": "relative error of the parts",
    "effective_rank": "effective rank",
    "reconstruction": "R(k), centred deltas",
    "reconstruction_own": "error at rank k",
    "cosine": "cosine between tasks",
    "row_spaces": "row-space interference",
    "row_spaces_centred": "row spaces, centred deltas",
    "interference": "STI in pairs",
    "agreement": "sign agreement in pairs",
    "i_k": "I(k), own deltas",
    "i_k_centred": "I(k), centred deltas",
    "tasks_merged": "number of tasks",
}


class Explained(NamedTuple):
    """One measure beside the lost score, of all matrices, or of one (`layer`)."""

    kind: str  # a key of KINDS
    measure: str
    layer: str  # empty: the mean over the matrices
    found: Correlation


@dataclass(frozen=True)
class Explanations:
    """All points, and how each measure of theirs goes with what they lost."""

    points: list[Points]
    explained: list[Explained]

    @property
    def overall(self) -> list[Explained]:
        """List what was found of the means over the matrices."""
        return [each for each in self.explained if not each.layer]

    def by_layer(self, kind: str, measure: str) -> dict[str, float]:
        """Return Spearman's correlation by matrix."""
        found = [each for each in self.explained if each.layer and (each.kind, each.measure) == (kind, measure)]
        return {each.layer: each.found.spearman.value for each in found}


def find_explanations(rows: Sequence[Row], measured: Measured, studies: StudyResults) -> Explanations:
    """Correlate every measure that this comparison has with the score that is lost."""
    points = find_points(rows, measured, studies)
    return Explanations(points, explain(points, measured))


def explain(points: Sequence[Points], measured: Measured) -> list[Explained]:
    """Correlate every measure of every kind of points with the lost score: the mean over matrices, then each matrix."""
    found = []
    for each in points:
        for measure, by_layer in each.measures.items():
            found.append(Explained(each.kind, measure, "", correlate(each.overall(measure), each.lost, each.groups)))
            if len(by_layer) == len(measured.matrices) > 1:
                for layer, values in zip(measured.matrices, by_layer, strict=True):
                    found.append(Explained(each.kind, measure, layer, correlate(values, each.lost, each.groups)))
    return found


ESTIMATES = ("spearman", "spearman_low", "spearman_high", "pearson", "pearson_low", "pearson_high")
HEADER = ("points", "measure", "layer", "n", "groups", *ESTIMATES)


def explained_lines(explained: Sequence[Explained]) -> list[tuple[Any, ...]]:
    """Return the lines of `explanations.csv`."""
    return [
        (KINDS[e.kind].title, e.measure, e.layer, e.found.points, e.found.groups, *e.found.spearman, *e.found.pearson)
        for e in explained
    ]
