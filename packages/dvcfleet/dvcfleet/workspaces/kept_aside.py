"""Keep aside what a user put in the place of an output, before the output is replaced: it may be the only copy.

What a stage left that failed or was killed is not kept: a note for each stage that runs says so until its outputs are
stored.
"""

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

from dvcfleet.dvc_adapter.protocols import Output, Stage
from dvcfleet.dvc_adapter.repositories import is_committed
from dvcfleet.dvc_adapter.storing import is_edited
from dvcfleet.repository import state_folder
from dvcfleet.worker.output import log_path

FOLDER = "kept-aside"
_ATTEMPTS = "attempts"


def keep_aside(stage: Stage, say: Callable[[str], None]) -> None:
    """Move the stage's outputs aside that are not what it wrote, and in no cache; say a line that names each.

    Outputs that persist stay: the command goes on with them.
    """
    if not attempt(stage).exists():
        for out in filter(_is_lone, stage.outs):
            say(f"{out} was not what {stage.addressing} wrote, and in no cache: kept as {_moved(out)}")


def attempt(stage: Stage) -> Path:
    """Return the note that is there while the stage's command is at work, until what it wrote is stored."""
    return state_folder(stage.repo) / _ATTEMPTS / log_path(Path(), stage.addressing).stem


def _is_lone(out: Output) -> bool:
    if out.persist or not is_edited(out):
        return False
    return out.use_cache or not is_committed(out.repo, out.fs_path)


def _moved(out: Output) -> str:
    """Move an output aside; return where it is then, from the repository's root."""
    root = out.repo.root_dir
    folder = state_folder(out.repo) / FOLDER / time.strftime("%Y-%m-%d-%H-%M-%S")
    target, number = folder / os.path.relpath(out.fs_path, root), 1
    while target.exists():
        number += 1
        target = Path(f"{folder}-{number}", os.path.relpath(out.fs_path, root))
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.move(out.fs_path, target)
    return os.path.relpath(target, root)
