"""The output of a stage's last run in this repository."""

import time
from collections.abc import Iterator
from io import FileIO
from pathlib import Path
from urllib.parse import unquote

from dvcfleet.errors import UserError, did_you_mean
from dvcfleet.repository import root_around
from dvcfleet.worker.output import LOGS, is_written, log_path

_POLL_S = 0.3
_BLOCK_BYTES = 1 << 20


def output_of(stage: str, repo: Path, follow: bool = False) -> Iterator[bytes]:
    """Read the output of a stage of the repository around `repo`, and with `follow` also what it prints until it ends.

    Raises UserError if no output of it is kept.
    """
    root = root_around(repo)
    path = log_path(root, stage)
    if not path.exists():
        names = [unquote(path.stem) for path in sorted((root / LOGS).glob("*.log"))]
        other = f"no output of it is kept here: it has not run, or the name is misspelt{did_you_mean(stage, names)}"
        raise UserError(f"stage {stage}: {other}")
    log = FileIO(path)
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
