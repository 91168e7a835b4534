"""Tell the processes of a run at which of their file operations they are to be killed."""

import json
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests import PYTHONPATH

ROOT = Path(__file__).parents[2]
AT_EXIT = -1


@dataclass(frozen=True)
class Injection:
    """The plan for a repository's processes, kept in a folder of its own; tests/faults/inject does what it says."""

    folder: Path

    @property
    def variables(self) -> dict[str, str]:
        """What makes every Python process below count its file operations."""
        code = os.pathsep.join([str(Path(__file__).parent / "inject"), PYTHONPATH])
        return {"PYTHONPATH": code, "FAULTS": str(self.folder / "plan.json"), "PYTHONDONTWRITEBYTECODE": "1"}

    def plan(
        self, repository: Path, kill: Mapping[str, int], group: bool = False, log: bool = False, only: str = ""
    ) -> None:
        """Say which process is to be killed where; `log`: note all operations; `only`: of what has this in its path."""
        self.folder.mkdir(parents=True, exist_ok=True)
        told = {"root": str(repository), "kill": dict(kill), "group": group, "only": only}
        told["log"] = str(self._log) if log else None
        (self.folder / "plan.json").write_text(json.dumps(told))

    def counted(self) -> Counter[str]:
        """How many operations each process made, as noted; of a stage of several commands, the one that made most."""
        most: Counter[str] = Counter()
        for line in self._log.read_text().splitlines():
            role, number, *_ = line.split("\t")
            most[role] = max(most[role], int(number))
        return most

    @property
    def _log(self) -> Path:
        return self.folder / "log"
