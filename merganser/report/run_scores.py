"""A run's scores, and one score in two runs. Importing it brings neither torch nor scipy."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from merganser.measures.scores import LEVEL
from merganser.outputs import read_json

FindFile = Callable[[str], Path | None]  # from a path in `data` to a file of a run, if it has one


@dataclass(frozen=True)
class PairedScore:
    """An entry's score on a task, or its mean, in two runs; `p`: two-sided, corrected by Holm over all lines."""

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


def read_score(find: FindFile, entry: str, task: str, folder: str = "metrics") -> Mapping[str, Any]:
    """Return the value, metric and standard error of a run's score; {} if it has none. `folder`: in `data`."""
    path = find(f"{folder}/{entry}/{task}.json")
    return read_json(path) if path else {}


def files_in(folder: Path) -> FindFile:
    """Find a run's files in the folder `data` of a workspace."""
    return lambda name: path if (path := folder / name).is_file() else None
