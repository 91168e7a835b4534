"""Run a stage on a node that shares only the DVC remote with the run's machine.

A node is a clone of the repository that was made for this (`make_node`). It fetches the missing inputs of the stage,
runs the commands, pushes the outputs, and returns the stage's entry for dvc.lock. Its own dvc.lock does not change.
"""

import hashlib
import json
import os
import shutil
import socket
import sqlite3
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dvcfleet.disk import is_in
from dvcfleet.dvc_adapter.objects import in_cache
from dvcfleet.dvc_adapter.protocols import Output, PipelineStage, Repo, Stage
from dvcfleet.dvc_adapter.repositories import tracked_paths
from dvcfleet.dvc_adapter.run_cache import may_keep
from dvcfleet.dvc_adapter.run_cache import run_key as run_cache_key
from dvcfleet.dvc_adapter.stages import load_stage, lock_entry_of, locked_stage
from dvcfleet.dvc_adapter.storing import save_inputs, save_output
from dvcfleet.errors import FailedError, UserError
from dvcfleet.messages import Job, NodeWork, Outcome
from dvcfleet.terminal.failures import failure_of
from dvcfleet.worker.jobs import make_job, run_job
from dvcfleet.workspaces.nodes.clone import (
    check_commit,
    check_node,
    locked,
    node_folder,
    node_root,
    only_attempt,
    opened_clone,
    parameter_files,
    write_if_changed,
)
from dvcfleet.workspaces.nodes.object_store import MissingError, ObjectStore


def run_on_node(job: Job, tell: Callable[[str], None]) -> Outcome:
    """Run a job's stage in this node's own clone unless it ran before; `tell` is called with blocks of lines of output.

    A folder that was not made a node is not changed: the outcome is then a user's mistake, exit code 2.
    """
    from dvc.exceptions import DvcException

    assert job.node
    root = node_root()
    where = f"node {socket.gethostname()}, {root}"
    try:
        check_node(root)
        with opened_clone(root) as repo:
            check_commit(repo, job.node.commit)
            with parameter_files(root, job.node.texts), only_attempt(root, job.name):
                store = ObjectStore(repo, lambda line: tell(f"{line}\n"))
                return NodeStage(repo, root, job, job.node, store, tell).run()
    except UserError as error:
        return Outcome(job.name, 2, tail=(str(error),), why=f"refused by {where}: {error}")
    except (DvcException, FailedError, OSError, sqlite3.Error) as error:
        words = failure_of(error).message
        return Outcome(job.name, 1, tail=(words,), why=f"{where}: {words}")


def present_run_key(stage: Stage, persisted: Sequence[dict[str, Any]]) -> str | None:
    """Return the run cache's key for a stage's command and present inputs; None if it cannot hold the stage.

    DVC's run cache holds no stage with persistent outputs, because they depend on their previous content. Here the hash
    of that content is part of the key.
    """
    if not may_keep(stage):
        return None
    key = run_cache_key(lock_entry_of(stage))
    if not any(out.persist for out in stage.outs):
        return key
    return hashlib.sha256(json.dumps([key, *persisted], sort_keys=True).encode()).hexdigest()


@dataclass
class NodeStage:
    """One stage on this node, from its inputs to its pushed outputs; `work` is what the run sent, `root` the clone."""

    repo: Repo
    root: Path
    job: Job
    work: NodeWork
    store: ObjectStore
    tell: Callable[[str], None]

    def run(self) -> Outcome:
        """Run the stage unless the remote's run cache knows its outputs."""
        with locked(self.repo):
            stage = load_stage(self.repo, str(self.root / self.work.dvc_yaml), self.work.stage)
            if stage is None:
                raise UserError(f"it has no stage {self.work.stage} in {self.work.dvc_yaml}")
            self._place_inputs(stage)
            self._check_inputs(stage)
            key = present_run_key(stage, self.work.persisted)
            known = self.store.find_run(key) if key and not self.work.forced else None
            if known:
                return Outcome(self.job.name, 0, entry=known, restored=True)
            self._clear_outputs(stage)
        outcome = run_job(replace(make_job(stage, self.job.resources), name=self.job.name), self.tell)
        if outcome.exit_code != 0:
            return outcome
        with locked(self.repo):
            entry = self._push_outputs(stage, key)
            self._log()
        return replace(outcome, entry=entry)

    def _log(self) -> None:
        with open(node_folder(self.root) / "log", "a", encoding="utf-8") as file:
            file.write(f"{time.strftime('%Y-%m-%dT%H:%M:%S%z')} {self.job.name}\n")

    def _place_inputs(self, stage: Stage) -> None:
        """Fetch and place the other stages' outputs that this one reads; clean folders that it reads as a whole."""
        inputs = self._outputs(self.work.inputs)
        lacking = [out for out in inputs if not out.exists or out.changed_checksum()]
        if lacking:
            self._fetch(lacking)
        wanted = {out.fs_path for out in inputs}
        gitignores = {str(self.root / path): text for path, text in self.work.gitignores.items()}
        tracked = tracked_paths(self.repo)
        for dep in stage.deps:
            if any(is_in(path, dep.fs_path) for path in wanted):
                _remove_others(dep.fs_path, wanted | gitignores.keys(), tracked)
        for path, text in gitignores.items():
            write_if_changed(Path(path), text)

    def _outputs(self, outs: Sequence[dict[str, Any]]) -> list[Output]:
        entry = {"cmd": "-", "outs": [dict(out) for out in outs]}
        return locked_stage(self.repo, str(self.root / self.work.dvc_yaml), entry, str(self.root)).outs

    def _fetch(self, outs: list[Output]) -> None:
        lacking = [out for out in outs if not in_cache(out)]
        if lacking:
            paths = ", ".join(os.path.relpath(out.fs_path, self.root) for out in lacking)
            self.tell(f"fetching {paths}\n")
            self.store.fetch(lacking)
        for out in outs:
            out.checkout(force=True)

    def _check_inputs(self, stage: Stage) -> None:
        """Raise UserError where an input differs from the one on the run's machine."""
        from dvc.dependency.base import DependencyDoesNotExistError

        try:
            save_inputs(stage)
        except DependencyDoesNotExistError as error:
            raise UserError(f"{error}; no stage makes it: commit it to git, or track it with `dvc add`") from error
        for dep in stage.deps:
            expected = self.work.expected.get(dep.def_path)
            if dep.def_path in self.work.expected and dep.hash_info.value != expected:
                raise UserError(f"{dep} differs from the run's machine ({dep.hash_info.value} here, {expected} there)")

    def _clear_outputs(self, stage: Stage) -> None:
        """Remove earlier outputs; restore persistent ones, unless a killed attempt of this stage has added to them."""
        for out in stage.outs:
            if not out.persist:
                out.remove()
        outs = {out.fs_path: out for out in self._outputs(self.work.persisted)}
        text = json.dumps(self.work.persisted, sort_keys=True)
        for out in (out for out in stage.outs if out.persist):
            if not (self._started.exists() and self._started.read_text(encoding="utf-8") == text):
                self._restore(out, outs.get(out.fs_path))
            out.unprotect()
        if any(out.persist for out in stage.outs):
            write_if_changed(self._started, text)

    @property
    def _started(self) -> Path:
        """The file that holds the persistent outputs' previous content until the stage ends here."""
        return node_folder(self.root) / hashlib.md5(self.job.name.encode()).hexdigest()

    def _restore(self, out: Output, before: Output | None) -> None:
        if before is None:
            out.remove()
            return
        try:
            self._fetch([before])
        except MissingError:
            out.remove()

    def _push_outputs(self, stage: PipelineStage, key: str | None) -> dict[str, Any]:
        """Store the outputs in the cache and on the remote, then the entry in the remote's run cache; return it."""
        for out in stage.outs:
            save_output(out)
        entry = lock_entry_of(stage)
        outs = locked_stage(self.repo, stage.path, entry, stage.wdir).outs
        uncached = {out.fs_path for out in stage.outs if not out.use_cache}
        for out in outs:
            if out.fs_path in uncached:
                out.commit(relink=False)
        self.store.push(outs)
        if key:
            self.store.save_run(key, entry)
        self._started.unlink(missing_ok=True)
        return entry


def _remove_others(folder: str, wanted: Collection[str], tracked: Collection[str]) -> None:
    """Remove all but the wanted paths, what is below them, and git's files from a folder; all paths are absolute."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.path in wanted:
                continue
            if not entry.is_dir(follow_symlinks=False):
                if entry.path not in tracked:
                    os.unlink(entry.path)
            elif entry.path in tracked or any(is_in(path, entry.path) for path in wanted):
                _remove_others(entry.path, wanted, tracked)
            else:
                shutil.rmtree(entry.path)
