"""The repository's dvc.lock files, completed by the entries that a killed run had not yet written."""

from functools import partial

from dvcfleet.crash_recovery import sync
from dvcfleet.dvc_adapter.lockfiles import LockFiles, lock_path
from dvcfleet.dvc_adapter.protocols import Repo
from dvcfleet.dvc_adapter.repositories import forget_index
from dvcfleet.dvc_adapter.stage_graph import stage_graph
from dvcfleet.dvc_adapter.stages import in_dvc_yaml
from dvcfleet.options import Options
from dvcfleet.repository import state_folder


def recovered_lock_files(repo: Repo) -> LockFiles:
    """Return the lock files after writing a killed run's journal into them."""
    state = state_folder(repo)
    locks = LockFiles(
        state / "journal", lambda: _lock_order(repo), repo.scm_context.track_file, partial(sync, repo, state)
    )
    if locks.recover():
        forget_index(repo)
    return locks


def _lock_order(repo: Repo) -> dict[str, list[str]]:
    """Return, per dvc.lock, its stages in the order in which `dvc repro --all-pipelines` would run them."""
    order: dict[str, list[str]] = {}
    for stage in stage_graph(repo, Options(all_pipelines=True))[1]:
        if in_dvc_yaml(stage):
            order.setdefault(lock_path(stage), []).append(stage.name)
    return order
