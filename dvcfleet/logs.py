"""The output of a stage's last run in this repository."""

import time
from collections.abc import Iterator
from io import FileIO
from pathlib import Path
from urllib.parse import unquote

from dvcfleet.errors import NoRepositoryError, UserError, did_you_mean
from dvcfleet.worker.output import LOGS, is_written, log_path

_POLL_S = 0.3
_BLOCK_BYTES = 1 << 20


def output_of(stage: str, repo: Path, follow: bool = False) -> Iterator[bytes]:
    """Read the output of a stage of the repository around `repo`, and with `follow` also what it prints until it ends.

    Raises UserError if no output of it is kept.
    """
    root = _root(repo)
    path = log_path(root, stage)
    log = FileIO(path if path.exists() else _refuse(stage, root))
    try:
        while True:
            is_going_on = follow and is_written(log)
            data = log.read(_BLOCK_BYTES)
            if data:
                yield data
            elif not is_going_on:
                return
            else:
                time.sleep(_POLL_S)
    finally:
        log.close()


def _root(repo: Path) -> Path:
    folder = repo.resolve()
    for each in (folder, *folder.parents):
        if (each / ".dvc").is_dir():
            return each
    raise NoRepositoryError(repo)


def _refuse(stage: str, root: Path) -> Path:
    names = [unquote(path.stem) for path in sorted((root / LOGS).glob("*.log"))]
    other = f"no output of it is kept here: it has not run, or the name is misspelt{did_you_mean(stage, names)}"
    raise UserError(f"stage {stage}: {other}")
