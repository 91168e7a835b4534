"""What the stages measured, read back: each entry's accuracies, what its merge cost, how it compares."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from merganser.errors import InputError
from merganser.measures import accuracy_drop_rate, normalised_accuracy
from merganser.params import Params

INDIVIDUAL = "individual"


@dataclass(frozen=True)
class Scores:
    """One entry's results. Accuracies and rates are fractions; the relative ones need an entry of `individual`."""

    accuracies: Mapping[str, float]  # by task, in the order of params.yaml
    profile: Mapping[str, Any]  # of the merge: wall_s, cpu_s, peak_rss_bytes, amr, ...
    normalised: float | None = None
    drop_rate: float | None = None

    @property
    def mean(self) -> float:
        """Return the mean accuracy over the tasks."""
        return sum(self.accuracies.values()) / len(self.accuracies)


def read_accuracies(params: Params, entry: str, metrics: Path) -> dict[str, float]:
    """Read an entry's accuracy on each declared task, in their order; raise InputError when one is missing."""
    return {task: float(read_json(metrics / entry / f"{task}.json")["accuracy"]) for task in params.tasks}


def read_scores(params: Params, metrics: Path, profiles: Path) -> dict[str, Scores]:
    """Read every declared entry's results, in the order of params.yaml."""
    accuracies = {entry: read_accuracies(params, entry, metrics) for entry in params.methods}
    reference = next((accuracies[name] for name, entry in params.methods.items() if entry.method == INDIVIDUAL), None)
    return {
        entry: Scores(
            accuracies=found,
            profile=read_json(profiles / f"{entry}.json"),
            normalised=normalised_accuracy(found, reference) if reference else None,
            drop_rate=accuracy_drop_rate(found, reference) if reference else None,
        )
        for entry, found in accuracies.items()
    }


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON file a stage wrote; raise InputError when it is not there."""
    if not path.is_file():
        raise InputError(f"{path}: missing; run the stage that writes it first (`dvc repro` or `merganser run` does)")
    content: dict[str, Any] = json.loads(path.read_text())
    return content
