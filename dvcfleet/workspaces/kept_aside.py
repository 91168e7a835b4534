"""Keep aside what a user put in the place of an output, before the output is replaced: it may be the only copy.

What a stage left that failed or was killed is not kept: a note for each stage that runs says so until its outputs are
stored.
"""

import os
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

from dvcfleet.dvc_adapter.protocols import Output, Repo, Stage
from dvcfleet.dvc_adapter.repositories import is_committed
from dvcfleet.dvc_adapter.storing import is_edited
from dvcfleet.repository import state_folder
from dvcfleet.worker.output import log_path

FOLDER = "kept-aside"
_ATTEMPTS = "attempts"


@dataclass
class KeptAside:
    """The folder of what is kept of a repository's outputs."""

    repo: Repo

    def keep(self, stage: Stage) -> list[str]:
        """Move the stage's outputs aside that are not what it wrote, and in no cache; return lines that name them.

        Outputs that persist stay: the command goes on with them.
        """
        if self._note(stage).exists():
            return []
        return [self._moved(Path(out.fs_path), f"{out}", stage.addressing) for out in stage.outs if self._is_lone(out)]

    def began(self, stage: Stage) -> None:
        """Note that the stage's command is at work on its outputs."""
        note = self._note(stage)
        note.parent.mkdir(exist_ok=True)
        note.touch()

    def ended(self, stage: Stage) -> None:
        """Note that what the stage wrote is stored."""
        self._note(stage).unlink(missing_ok=True)

    def _note(self, stage: Stage) -> Path:
        return state_folder(self.repo) / _ATTEMPTS / log_path(Path(), stage.addressing).stem

    def _is_lone(self, out: Output) -> bool:
        if out.persist or not is_edited(out):
            return False
        return out.use_cache or not is_committed(self.repo, out.fs_path)

    def _moved(self, path: Path, name: str, stage: str) -> str:
        folder = state_folder(self.repo) / FOLDER / time.strftime("%Y-%m-%d-%H-%M-%S")
        target, number = folder / os.path.relpath(path, self.repo.root_dir), 1
        while target.exists():
            number += 1
            target = Path(f"{folder}-{number}", os.path.relpath(path, self.repo.root_dir))
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(path, target)
        kept = os.path.relpath(target, self.repo.root_dir)
        return f"{name} was not what {stage} wrote, and in no cache: kept as {kept}"
