"""The measures of a comparison, read back: of the tasks, and of each entry's merge."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from merganser.report.layers import by_depth

Grid = NDArray[np.float64]  # NaN where a number is not defined
# what is shown of each matrix, and where it stands in the file; numbers per task or pair of tasks as their mean
BY_LAYER: dict[str, tuple[str, ...]] = {
    "effective_rank": ("effective_rank",),
    "energy_share": ("energy_share",),
    "error": ("reconstruction_error", "own"),
    "error_centred": ("reconstruction_error", "centred"),
    "cosine": ("cosines",),
    "row_spaces": ("row_space_interference", "own"),
    "row_spaces_centred": ("row_space_interference", "centred"),
    "interference": ("interference", "own"),
    "interference_after_tsv_m": ("interference", "after_tsv_m"),
    "procrustes_u": ("interference", "procrustes", "u"),
    "procrustes_v": ("interference", "procrustes", "v"),
    "agreement_weights": ("sign_agreement", "weights"),
    "agreement_weights_pruned": ("sign_agreement", "weights_pruned"),
    "agreement_joint": ("sign_agreement", "joint"),
    "agreement_joint_pruned": ("sign_agreement", "joint_pruned"),
    "agreement_joint_pruned_back": ("sign_agreement", "joint_pruned_back"),
}


@dataclass(frozen=True)
class Measured:
    """What `measure` and `measure_merged` wrote. All grids follow `tasks`, and `matrices` or `names`."""

    of_tasks: Mapping[str, Any]
    of_merges: Mapping[str, Mapping[str, Any]]  # by entry

    @property
    def tasks(self) -> list[str]:
        """List the tasks in the order of the grids."""
        return list(self.of_tasks["tasks"])

    @cached_property
    def matrices(self) -> list[str]:
        """List the matrix parameters by depth."""
        layers = self.of_tasks["layers"]
        return by_depth(name for name, layer in layers.items() if layer["kind"] == "matrix")

    @property
    def cosines(self) -> Grid:
        """Return the cosines of the tasks' whole vectors (T, T)."""
        return grid(self.of_tasks["cosines"])

    def row_spaces(self, which: str) -> Grid:
        """Return the row-space interference of `own` or `centred` deltas, the mean over the matrices (T, T)."""
        found = [grid(self.at(name, "row_space_interference", which)) for name in self.matrices]
        return mean_over(np.stack(found), axis=0) if found else np.full((len(self.tasks),) * 2, np.nan)

    def at(self, layer: str, *keys: str) -> Any:
        """Return what was measured of a layer, None where it was not."""
        found = self.of_tasks["layers"][layer]
        for key in keys:
            found = None if found is None else found.get(key)
        return found

    def by_layer(self, measure: str) -> dict[str, float]:
        """Return one number a matrix, of a measure in BY_LAYER."""
        return {name: mean_of(self.at(name, *BY_LAYER[measure])) for name in self.matrices}

    def merges(self, *, parts: bool) -> list[str]:
        """List the entries that give one model, or that have parts per task."""
        return [entry for entry, found in self.of_merges.items() if found["parts"] == parts]

    def alignment(self, entry: str) -> Grid:
        """Return SAR of each task with a merge, by matrix (L, T)."""
        layers = self.of_merges[entry]["layers"]
        return grid([layers[name]["sar"] for name in self.matrices]).reshape(-1, len(self.tasks))

    def overall(self, entry: str) -> Grid:
        """Return one number a task (T): mean SAR of one model, relative error of models per task."""
        found = self.of_merges[entry]
        return grid(found["error" if found["parts"] else "sar"])

    def as_json(self) -> dict[str, Any]:
        """Return all numbers as plain data."""
        return {"tasks": self.of_tasks, "entries": self.of_merges}


def grid(values: Any) -> Grid:
    """Turn nested lists of numbers and None into an array."""
    return np.array(values, dtype=np.float64)


def mean_of(value: Any) -> float:
    """Return a number, the mean of a list, or that of a square list's entries off the diagonal; NaN for none."""
    found = grid(value)
    if found.ndim == 2:
        found = found[~np.eye(len(found), dtype=bool)]
    return float(mean_over(found.ravel(), axis=0))


def mean_over(values: Grid, axis: int) -> Grid:
    """Average what is defined; NaN where nothing is."""
    known = ~np.isnan(values)
    count = known.sum(axis)
    return np.divide(np.where(known, values, 0).sum(axis), count, out=np.full(count.shape, np.nan), where=count > 0)
