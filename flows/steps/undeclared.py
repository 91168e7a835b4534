"""Remove what params.yaml no longer declares from dvc.lock and the workspace; restore it if declared again.

DVC's cache keeps the outputs, and the state folder the dvc.lock entries. DVC's run cache alone would not be enough: it
has no outputs that persist, such as decompositions.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from dvcfleet.dvc_adapter.lockfiles import LockFiles, lock_file_of, read_lock_file
from dvcfleet.dvc_adapter.protocols import Repo
from dvcfleet.dvc_adapter.repositories import forget_index
from dvcfleet.dvc_adapter.stages import in_dvc_yaml
from dvcfleet.errors import some, stage_count
from dvcfleet.planning.orphans import find_orphans, forget_orphans, remove_outputs
from dvcfleet.repository import state_folder
from merganser.flows.suites.kept_lock_files import FOLDER
from merganser.outputs import replacing

NAME = "undeclared.lock"  # beside the lock files of comparisons: `merganser gc` keeps what they name
_MOST_NAMES = 10


def follow_declared(repo: Repo, lock_files: LockFiles, say: Callable[[str], None]) -> None:
    """Restore entries declared again; remove and name those no longer declared, unless edited or not in the cache."""
    kept = state_folder(repo) / FOLDER / NAME
    _put_back(repo, lock_files, kept)
    orphans = [orphan for orphan in find_orphans(repo) if orphan.lock_file == _lock_file(repo)]
    if not orphans:
        return
    _keep(kept, {orphan.name: orphan.entry for orphan in orphans})  # before it is taken out: a kill loses nothing
    left = [path for orphan in orphans for path in remove_outputs(repo, orphan)]
    forget_orphans(lock_files, orphans)
    forget_index(repo)
    removed = [orphan.name for orphan in orphans if orphan.outs]  # none in a trial, which has a copy of dvc.lock alone
    if removed:
        names, count = some(removed, _MOST_NAMES), stage_count(len(removed), " is", " are")
        say(f"{count} no longer in dvc.yaml, and out of the workspace (DVC's cache keeps the outputs): {names}")
    for path in left:
        say(f"  {path} was changed, or is not in the cache: not removed")


def _put_back(repo: Repo, lock_files: LockFiles, kept: Path) -> None:
    entries = read_lock_file(kept) if kept.is_file() else {}
    if not entries:
        return
    path = _lock_file(repo)
    known = read_lock_file(path)
    back = [
        stage
        for stage in repo.index.stages
        if in_dvc_yaml(stage) and lock_file_of(stage) == path and stage.name in entries.keys() - known.keys()
    ]
    for stage in back:
        lock_files.record(stage, entries[stage.name])
    if back:
        lock_files.flush()
        forget_index(repo)


def _keep(kept: Path, entries: dict[str, Any]) -> None:
    kept.parent.mkdir(exist_ok=True)
    known = read_lock_file(kept) if kept.is_file() else {}
    with replacing(kept) as out:
        out.write(yaml.safe_dump({"schema": "2.0", "stages": known | entries}, sort_keys=False).encode())


def _lock_file(repo: Repo) -> str:
    return str(Path(repo.root_dir) / "dvc.lock")
