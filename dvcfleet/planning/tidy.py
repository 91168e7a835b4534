"""Before a run: finish what a killed one left, and take out what belongs to no stage any more."""

import os
from typing import TYPE_CHECKING

from rich.console import Console

from dvcfleet.dvc_adapter.lockfiles import LockFiles, lock_path
from dvcfleet.planning.orphans import find_orphans, take_out
from dvcfleet.planning.plan import stage_graph
from dvcfleet.repository import state_folder

if TYPE_CHECKING:
    from dvc.repo import Repo


def tidy(repo: "Repo", prune: bool, console: Console) -> LockFiles:
    """Put a killed run's journal into dvc.lock and, if `prune`, take orphans out; return the lock files."""
    locks = LockFiles(state_folder(repo) / "journal", lambda: _lock_order(repo), repo.scm_context.track_file)
    changed = locks.recover() > 0
    orphans = list(find_orphans(repo)) if prune else []
    for orphan in orphans:
        left = take_out(repo, orphan)
        console.print(f"{orphan.name}: no longer in dvc.yaml, taken out (its outputs stay in DVC's cache)")
        for path in left:
            console.print(f"  {path} was changed, or is not in the cache: left where it is")
        locks.forget(os.path.splitext(orphan.dvc_yaml)[0] + ".lock", [orphan.name])
    if changed or orphans:
        repo._reset()
    return locks


def _lock_order(repo: "Repo") -> dict[str, list[str]]:
    """Return, per dvc.lock, its stages in the order in which `dvc repro` would run them."""
    order: dict[str, list[str]] = {}
    for stage in stage_graph(repo, ())[1]:
        if hasattr(stage, "name"):
            order.setdefault(lock_path(stage), []).append(stage.name)
    return order
