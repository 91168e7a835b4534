"""Scores read back from the stages' files: each entry's accuracies, the cost of its merge, how it compares."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from merganser.config.params import Params
from merganser.errors import InputError
from merganser.measures.accuracy import accuracy_drop_rate, normalised_accuracy

INDIVIDUAL = "individual"


@dataclass(frozen=True)
class Scores:
    """One entry's results. Accuracies and rates are fractions; relative ones need an entry of method `individual`."""

    accuracies: Mapping[str, float]  # by task, in the order of params.yaml
    totals: Mapping[str, int]  # images measured, by task
    profile: Mapping[str, Any]  # of the merge: wall_s, cpu_s, peak_rss_bytes, amr, ...
    normalised: float | None = None
    drop_rate: float | None = None

    @property
    def mean(self) -> float:
        """Return the mean accuracy over the tasks."""
        return sum(self.accuracies.values()) / len(self.accuracies)


def read_metrics(params: Params, entry: str, metrics: Path) -> dict[str, dict[str, Any]]:
    """Read an entry's metrics on each declared task, in their order; raise InputError if one is missing."""
    return {task: read_json(metrics / entry / f"{task}.json") for task in params.tasks}


def read_scores(params: Params, metrics: Path, profiles: Path) -> dict[str, Scores]:
    """Read every declared entry's results, in the order of params.yaml."""
    measured = {entry: read_metrics(params, entry, metrics) for entry in params.methods}
    accuracies = {entry: _column(found, "accuracy") for entry, found in measured.items()}
    individual = (accuracies[name] for name, entry in params.methods.items() if entry.method == INDIVIDUAL)
    # Nothing is relative to a model that gets nothing right.
    reference = next((found for found in individual if all(found.values())), None)
    return {
        entry: Scores(
            accuracies=found,
            totals=_column(measured[entry], "total"),
            profile=read_json(profiles / f"{entry}.json"),
            normalised=normalised_accuracy(found, reference) if reference else None,
            drop_rate=accuracy_drop_rate(found, reference) if reference else None,
        )
        for entry, found in accuracies.items()
    }


def _column(measured: Mapping[str, Mapping[str, Any]], name: str) -> dict[str, Any]:
    return {task: values[name] for task, values in measured.items()}


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON file a stage wrote; raise InputError when it is not there."""
    if not path.is_file():
        raise InputError(f"{path}: missing; run the stage that writes it first (`dvc repro` or `merganser run` does)")
    content: dict[str, Any] = json.loads(path.read_text())
    return content
