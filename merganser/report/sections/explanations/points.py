"""The points of one comparison: lost scores with measures.

Points are entries x tasks (each one-model entry's score on each task), tasks (over all those entries), and subsets x
entries (the study over the number of tasks). Legend: L matrices, n points, T tasks, k rank of truncations.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from math import nan
from typing import Any

import numpy as np

from merganser.report.rows import Row, in_group
from merganser.report.scores import Grid, MergeMeasures, grid, mean_over
from merganser.report.sections.study_tasks import SubsetResults

PAIRS = {  # measures of two tasks, and where they stand in a layer's record
    "cosine": ("cosines",),
    "row_spaces": ("row_space_interference", "own"),
    "row_spaces_centred": ("row_space_interference", "centred"),
    "interference": ("interference", "pairs"),
    "agreement": ("sign_agreement", "pairs"),
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
SUMMED = {"i_k": "row_spaces", "i_k_centred": "row_spaces_centred"}  # over the pairs of a subset, not averaged


@dataclass(frozen=True)
class KindPoints:
    """The points of one kind: each one's loss, its group for the bootstrap, and measures by matrix (L, n)."""

    kind: str  # a key of `explanations.KINDS`
    lost: Grid  # (n,), share of the individual models' score
    groups: Sequence[Hashable]
    measures: dict[str, Grid]  # (L, n), or (1, n) of what has no layers

    def overall(self, measure: str) -> Grid:
        """Return a measure's mean over the matrices (n,)."""
        return mean_over(self.measures[measure], axis=0)


def find_points(rows: Sequence[Row], measured: MergeMeasures, study: SubsetResults | None) -> list[KindPoints]:
    """Return the points of every kind that this comparison has; none without individual models or matrices."""
    individual = next((row.scores.values for row in rows if row.about.name == "individual"), None)
    if not individual or not measured.matrices or any(value <= 0 for value in individual.values()):
        return []
    tasks = [task for task in measured.tasks if task in individual]
    single, parts = (
        [row for row in in_group(list(rows), group) if row.entry in measured.merges(parts=group == "parts")]
        for group in ("single", "parts")
    )
    lost = {row.entry: [1 - row.scores.values[task] / individual[task] for task in tasks] for row in (*single, *parts)}
    kinds = []
    if single:
        kinds += [_merges(single, tasks, lost, measured), _tasks(single, tasks, lost, measured)]
    if parts:
        kinds.append(_errors(parts, tasks, lost, measured))
    if study and study.normalised:
        kinds.append(_subsets(study, measured))
    return [points for points in kinds if len(points.lost) > 1]


def _merges(rows: Sequence[Row], tasks: Sequence[str], lost: Mapping[str, Any], measured: MergeMeasures) -> KindPoints:
    places = [measured.tasks.index(task) for task in tasks]

    def by_layer(key: str) -> Grid:
        layers = [measured.of_merges[row.entry]["layers"] for row in rows]
        values = [
            [grid(each[name][key]) * np.ones(len(measured.tasks)) for each in layers] for name in measured.matrices
        ]
        return np.array(values)[:, :, places].reshape(len(measured.matrices), -1)

    measures = {"sar": "sar", "cosine_with_merge": "cosines", "effective_rank_of_merge": "effective_rank"}
    return KindPoints(
        "merges",
        np.concatenate([lost[row.entry] for row in rows]),
        [row.entry for row in rows for _ in tasks],
        {name: by_layer(key) for name, key in measures.items()},
    )


def _errors(rows: Sequence[Row], tasks: Sequence[str], lost: Mapping[str, Any], measured: MergeMeasures) -> KindPoints:
    places = [measured.tasks.index(task) for task in tasks]
    errors = np.concatenate([measured.overall(row.entry)[places] for row in rows])
    groups = [row.entry for row in rows for _ in tasks]
    values = np.concatenate([lost[row.entry] for row in rows])
    return KindPoints("errors", values, groups, {"relative_error": errors[None]})


def _tasks(rows: Sequence[Row], tasks: Sequence[str], lost: Mapping[str, Any], measured: MergeMeasures) -> KindPoints:
    """Pair each task's measures (of pairs, the mean with all others) with its mean loss over the entries."""
    places = [measured.tasks.index(task) for task in tasks]
    measures = {name: by_task[:, places] for name, by_task in _of_tasks(measured).items()}
    for name, pairs in _of_pairs(measured).items():
        measures[name] = mean_over(pairs, axis=2)[:, places]
    return KindPoints("tasks", np.mean([lost[row.entry] for row in rows], axis=0), list(tasks), measures)


def _subsets(study: SubsetResults, measured: MergeMeasures) -> KindPoints:
    """Pair each subset's measures with an entry's loss on it, minus the entry's mean loss."""
    subsets = [[measured.tasks.index(task) for task in point.subset] for point in study.points]
    means = {entry: float(np.mean([s.value for s in study.points if s.entry == entry])) for entry in study.entries}
    measures = {
        name: np.stack([mean_over(by_task[:, places], axis=1) for places in subsets], axis=1)
        for name, by_task in _of_tasks(measured).items()
    }
    pairs = _of_pairs(measured)
    for name, values in pairs.items():
        cut = (values[:, places][:, :, places].reshape(len(values), -1) for places in subsets)
        measures[name] = np.stack([mean_over(each, axis=1) for each in cut], axis=1)
    sizes = np.array([len(places) for places in subsets], dtype=np.float64)
    measures |= {name: measures[of] * sizes * (sizes - 1) for name, of in SUMMED.items()}
    measures["reconstruction"] = measures["reconstruction"] * sizes
    return KindPoints(
        "subsets",
        np.array([means[point.entry] - point.value for point in study.points]),
        [point.subset for point in study.points],
        measures | {"tasks_merged": sizes[None]},
    )


def _of_tasks(measured: MergeMeasures) -> dict[str, Grid]:
    """Return the measures of single tasks by matrix (L, T)."""
    return {
        "effective_rank": _stacked(measured, "effective_rank"),
        "reconstruction_own": _stacked(measured, "reconstruction_error", "own"),
        "reconstruction": _stacked(measured, "reconstruction_error", "centred") ** 2 * _centred_squares(measured),
    }


def _of_pairs(measured: MergeMeasures) -> dict[str, Grid]:
    """Return the measures of two tasks by matrix (L, T, T), NaN on the diagonal."""
    count = len(measured.tasks)
    stacked = {name: _stacked(measured, *keys, shape=(count, count)) for name, keys in PAIRS.items()}
    return {name: np.where(np.eye(count, dtype=bool), nan, values) for name, values in stacked.items()}


def _centred_squares(measured: MergeMeasures) -> Grid:
    """Return the squared norms of the tasks' deltas minus their mean, by matrix (L, T), from norms and cosines."""
    norms = _stacked(measured, "norms")
    cosines = np.nan_to_num(_stacked(measured, "cosines", shape=(len(measured.tasks),) * 2))
    products = norms[:, :, None] * cosines * norms[:, None, :]
    own, rows = np.einsum("ltt->lt", products), products.mean(2)
    return np.asarray(np.maximum(own - 2 * rows + rows.mean(1, keepdims=True), 0))


def _stacked(measured: MergeMeasures, *keys: str, shape: tuple[int, ...] | None = None) -> Grid:
    """Return a measure of every matrix (L, *shape), NaN for those without it."""
    whole = shape or (len(measured.tasks),)
    values = [measured.at(name, *keys) for name in measured.matrices]
    return np.stack([np.full(whole, nan) if each is None else grid(each) for each in values])
