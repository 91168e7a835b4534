"""The files of a run's scores, and one score in two runs. Importing it brings neither torch nor scipy."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from merganser.measures.scores import LEVEL
from merganser.outputs import read_json

Find = Callable[[str, str], Path | None]  # from an entry and a task to a file of a run, if it has one
FindFile = Callable[[str], Path | None]  # from a path in `data` to a file of a run, if it has one


@dataclass(frozen=True)
class PairedScore:
    """An entry's score on a task, or its mean, in both runs; `p`: two-sided, after Holm's correction over all lines.

    None: the two sides do not have the same examples.
    """

    entry: str
    column: str
    first: float
    second: float
    p: float | None = None

    @property
    def difference(self) -> float:
        """Return how much higher the second run's score is."""
        return self.second - self.first

    @property
    def is_worse(self) -> bool:
        """Tell whether the second run is worse by more than the sampling error."""
        return self.difference < 0 and self.p is not None and self.p < LEVEL


@dataclass(frozen=True)
class Files:
    """A run's files: its metrics, and its examples' results, by entry and task."""

    metrics: Find
    examples: Find

    def metric(self, entry: str, task: str) -> Mapping[str, Any]:
        """Return the value, metric and standard error of a score; {} if the entry has none."""
        path = self.metrics(entry, task)
        return read_json(path) if path else {}


def score_files(find: FindFile, metrics: str = "metrics", examples: str = "examples") -> Files:
    """Return a run's files of scores and examples' results, by their folders in `data`."""
    return Files(
        lambda entry, task: find(f"{metrics}/{entry}/{task}.json"),
        lambda entry, task: find(f"{examples}/{entry}/{task}.safetensors"),
    )


def files_in(folder: Path) -> FindFile:
    """Find a run's files in the folder `data` of a workspace."""
    return lambda name: path if (path := folder / name).is_file() else None
