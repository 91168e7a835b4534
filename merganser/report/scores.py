"""Scores and measures of a comparison, read from the stages' files: of each entry on each task, and of its merge."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import NDArray

from merganser.config.params import Params
from merganser.config.sections import Entry
from merganser.evaluation.scoring import Score
from merganser.measures.scores import error_of_mean, normalised_score, score_drop_rate
from merganser.outputs import read_json
from merganser.report.formats import by_depth

INDIVIDUAL = "individual"


@dataclass(frozen=True)
class MeanScore:
    """The scores of one merge on each task, and their mean."""

    by_task: Mapping[str, Score]  # in the order of params.yaml

    @property
    def tasks(self) -> list[str]:
        """List the tasks that have scores."""
        return list(self.by_task)

    @property
    def mean(self) -> float:
        """Return the mean of the tasks' values, a fraction."""
        return sum(values_of(self.by_task).values()) / len(self.by_task)

    @property
    def error(self) -> float | None:
        """Return the standard error of the mean; None if a task's is not known."""
        return error_of_mean(errors_of(self.by_task))


@dataclass(frozen=True)
class Scores(MeanScore):
    """One entry's results. Values and rates are fractions; relative ones need an entry of method `individual`."""

    profile: Mapping[str, Any]  # of the merge: wall_s, cpu_s, peak_rss_bytes, amr, ...
    normalised: float | None = None
    normalised_error: float | None = None  # the standard error, the individual models' scores taken as they are
    drop_rate: float | None = None
    unseen: Mapping[str, Score] = field(default_factory=dict)  # on tasks that have no model, which nothing else counts

    @property
    def unseen_mean(self) -> float | None:
        """Return the mean over the unseen tasks; None if there are none."""
        return sum(values_of(self.unseen).values()) / len(self.unseen) if self.unseen else None

    @property
    def unseen_error(self) -> float | None:
        """Return the standard error of that mean; None if a task's is not known."""
        return error_of_mean(errors_of(self.unseen)) if self.unseen else None

    @property
    def mixtures(self) -> bool:
        """Tell whether mixtures of tasks' parts were scored on the unseen tasks."""
        return any("uniform" in score for score in self.unseen.values())

    @property
    def values(self) -> dict[str, float]:
        """Return each task's value, by its own metric."""
        return values_of(self.by_task)

    @property
    def metrics(self) -> dict[str, str]:
        """Return each task's metric."""
        return {task: score["metric"] for task, score in self.by_task.items()}

    @property
    def known(self) -> float | None:
        """Return the mean over the tasks with known task labels, for an entry with a router; None for others."""
        return self._mean_of("known")

    @property
    def router(self) -> float | None:
        """Return the router's mean accuracy over the tasks; None without a router."""
        return self._mean_of("router")

    def _mean_of(self, key: Literal["known", "router"]) -> float | None:
        values = [score[key] for score in self.by_task.values() if key in score]
        return sum(values) / len(values) if values else None

    @property
    def spread(self) -> float | None:
        """Return the standard deviation over the seeds of the mean over the tasks; None for one seed."""
        return spread_of(self.by_task)


def spread_of(scores: Mapping[str, Score]) -> float | None:
    """Return the standard deviation over the seeds of the mean over the tasks."""
    by_task = [score["seeds"] for score in scores.values() if "seeds" in score]
    return stdev(fmean(values) for values in zip(*by_task, strict=True)) if by_task else None


def values_of(scores: Mapping[str, Score]) -> dict[str, float]:
    """Return the value of each task's score."""
    return {task: score["value"] for task, score in scores.items()}


def errors_of(scores: Mapping[str, Score]) -> dict[str, float | None]:
    """Return the standard error of each task's score."""
    return {task: score["stderr"] for task, score in scores.items()}


def read_metrics(tasks: Iterable[str], folder: Path) -> dict[str, Score]:
    """Read an entry's score on each task, in their order; raise InputError if one is missing."""
    return {task: cast(Score, read_json(folder / f"{task}.json")) for task in tasks}


def read_scores(params: Params, metrics: Path, profiles: Path, unseen: Path | None = None) -> dict[str, Scores]:
    """Read every declared entry's results, in the order of params.yaml; `unseen`: the folder of unseen tasks."""
    measured = {entry: read_metrics(params.measured, metrics / entry) for entry in params.methods}
    values = {entry: values_of(by_task) for entry, by_task in measured.items()}
    reference = individual_values(params, values)
    return {
        entry: Scores(
            by_task=measured[entry],
            profile=read_json(profiles / f"{entry}.json"),
            normalised=normalised_score(by_task, reference) if reference else None,
            normalised_error=error_of_mean(errors_of(measured[entry]), reference) if reference else None,
            drop_rate=score_drop_rate(by_task, reference) if reference else None,
            unseen=read_metrics(params.unseen, unseen / entry) if unseen else {},
        )
        for entry, by_task in values.items()
    }


def written_values(entry: Entry, profile: Mapping[str, Any]) -> dict[str, Any]:
    """Return an entry's parameters without the method's defaults: those of params.yaml, or of its search."""
    return dict(profile["search"]["chosen"]) if "search" in profile else entry.values


def individual_values(params: Params, values: Mapping[str, Mapping[str, float]]) -> Mapping[str, float] | None:
    """Return the individual models' values; None without them, or if one is zero or less."""
    by_entry = (values[name] for name, entry in params.methods.items() if entry.method == INDIVIDUAL)
    return next((each for each in by_entry if all(value > 0 for value in each.values())), None)


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
class MergeMeasures:
    """The results of `measure` and `measure_merged`. All grids follow `tasks`, and `matrices` or `names`."""

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
        """Return the row-space interference of `own` or `centred` deltas, averaged over the matrices (T, T)."""
        grids = [grid(self.at(name, "row_space_interference", which)) for name in self.matrices]
        return mean_over(np.stack(grids), axis=0) if grids else np.full((len(self.tasks),) * 2, np.nan)

    def at(self, layer: str, *keys: str) -> Any:
        """Return a layer's measures; None if it was not measured."""
        content = self.of_tasks["layers"][layer]
        for key in keys:
            content = None if content is None else content.get(key)
        return content

    def by_layer(self, measure: str) -> dict[str, float]:
        """Return one number per matrix, of a measure in BY_LAYER."""
        return {name: grid_mean(self.at(name, *BY_LAYER[measure])) for name in self.matrices}

    def merges(self, *, parts: bool) -> list[str]:
        """List the entries that give one model, or those with parts per task."""
        return [entry for entry, measures in self.of_merges.items() if measures["parts"] == parts]

    def alignment(self, entry: str) -> Grid:
        """Return SAR of each task with a merge, by matrix (L, T)."""
        layers = self.of_merges[entry]["layers"]
        return grid([layers[name]["sar"] for name in self.matrices]).reshape(-1, len(self.tasks))

    def overall(self, entry: str) -> Grid:
        """Return one number per task (T): mean SAR of one model, relative error of models per task."""
        measures = self.of_merges[entry]
        return grid(measures["error" if measures["parts"] else "sar"])

    def as_json(self) -> dict[str, Any]:
        """Return all numbers as plain data."""
        return {"tasks": self.of_tasks, "entries": self.of_merges}


def grid(values: Any) -> Grid:
    """Convert nested lists of numbers and None to an array."""
    return np.array(values, dtype=np.float64)


def grid_mean(value: Any) -> float:
    """Return a number, the mean of a list, or that of a square list's entries off the diagonal; NaN for none."""
    values = grid(value)
    if values.ndim == 2:
        values = values[~np.eye(len(values), dtype=bool)]
    return float(mean_over(values.ravel(), axis=0))


def mean_over(values: Grid, axis: int) -> Grid:
    """Average the defined values; NaN if there are none."""
    known = ~np.isnan(values)
    count = known.sum(axis)
    return np.divide(np.where(known, values, 0).sum(axis), count, out=np.full(count.shape, np.nan), where=count > 0)
