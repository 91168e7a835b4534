"""Run a stage on a node that shares nothing with the run's machine but the DVC remote.

A node is a clone of the repository for its worker alone. It fetches the stage's inputs, less what it has, runs the
commands, pushes the outputs, and sends back the stage's entry for dvc.lock; its own dvc.lock it leaves alone.
"""

import hashlib
import json
import os
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dvcfleet.dvc_adapter.lockfiles import locked_stage
from dvcfleet.dvc_adapter.storing import save_inputs, save_output
from dvcfleet.errors import UserError
from dvcfleet.execution.jobs import make_job, run_job
from dvcfleet.messages import Job, NodeWork, Outcome
from dvcfleet.nodes.clones import check_commit, chosen, claimed, locked, node_folder, node_root, opened_clone, put
from dvcfleet.nodes.object_store import MissingError, ObjectStore
from dvcfleet.nodes.sweep import sweep
from dvcfleet.repository import tracked_paths

if TYPE_CHECKING:
    from dvc.output import Output
    from dvc.repo import Repo
    from dvc.stage import PipelineStage, Stage


def run_on_node(job: Job, tell: Callable[[str], None]) -> Outcome:
    """Run a job's stage in this node's own clone, or find that it ran before; `tell` gets what is printed."""
    from dvc.exceptions import DvcException

    assert job.node
    try:
        root = node_root()
        with claimed(root), opened_clone(root) as repo:
            check_commit(repo, job.node.commit)
            with chosen(root, job.node.texts):
                return Visit(repo, job, ObjectStore(repo, tell), tell).run()
    except UserError as error:
        return Outcome(job.name, 2, tail=(str(error),), why=f"refused by {_here(node_root(check=False))}: {error}")
    except (DvcException, OSError) as error:
        return Outcome(job.name, 1, tail=(str(error),), why=f"{_here(node_root(check=False))}: {error}")


def run_key(stage: "Stage", persisted: Sequence[dict[str, Any]]) -> str | None:
    """Return the run cache's key for a stage's command and present inputs; None where DVC would keep no such thing.

    DVC has none for outputs to persist, since they depend on what was there before: here that is part of the key.
    """
    from dvc.stage.cache import _get_cache_hash
    from dvc.stage.serialize import to_single_stage_lockfile

    if stage.is_callback or stage.always_changed or not (stage.cmd and stage.deps and stage.outs):
        return None
    key = str(_get_cache_hash(dict(to_single_stage_lockfile(stage)), key=True))
    if not any(out.persist for out in stage.outs):
        return key
    return hashlib.sha256(json.dumps([key, *persisted], sort_keys=True).encode()).hexdigest()


@dataclass
class Visit:
    """One stage's stay on this node."""

    repo: "Repo"
    job: Job
    store: ObjectStore
    tell: Callable[[str], None]

    def run(self) -> Outcome:
        """Run the stage, or find that it ran before."""
        with locked(self.repo):
            stage = self._loaded()
            self._place_inputs(stage)
            self._check_inputs(stage)
            key = run_key(stage, self.work.persisted)
            known = self.store.find_run(key) if key and not self.work.forced else None
            if known:
                return Outcome(self.job.name, 0, entry=known, restored=True)
            self._clear_outputs(stage)
        local = make_job(stage, self.job.resources)
        environment = self.job.environment | local.environment | {"DVC_STAGE": self.job.name}
        outcome = run_job(
            replace(local, name=self.job.name, environment=environment, preload=self.job.preload), self.tell
        )
        if outcome.exit_code != 0:
            return outcome
        with locked(self.repo):
            entry = self._leave_outputs(stage, key)
            self._note()
        return replace(outcome, entry=entry)

    def _note(self) -> None:
        """Note in the node's log which stages it ran to their end."""
        with open(node_folder(self.root) / "log", "a") as file:
            file.write(f"{time.strftime('%Y-%m-%dT%H:%M:%S%z')} {self.job.name}\n")

    @property
    def work(self) -> NodeWork:
        """What this node was told of the stage."""
        assert self.job.node
        return self.job.node

    @property
    def root(self) -> Path:
        """The node's clone."""
        return Path(self.repo.root_dir)

    def _loaded(self) -> "PipelineStage":
        from dvc.stage.exceptions import StageFileDoesNotExistError, StageNotFound

        try:
            return self.repo.stage.load_one(str(self.root / self.work.dvc_yaml), self.work.stage)
        except (StageNotFound, StageFileDoesNotExistError) as error:
            raise UserError(f"it has no stage {self.work.stage} in {self.work.dvc_yaml}") from error

    def _place_inputs(self, stage: "Stage") -> None:
        """Have in the workspace what the stage reads of other stages, and in folders that it reads whole no more."""
        inputs = self._known(self.work.inputs)
        lacking = [out for out in inputs if not out.exists or out.changed_checksum()]
        if lacking:
            self._fetch(lacking)
        wanted = {out.fs_path for out in inputs}
        hidden = {str(self.root / path): text for path, text in self.work.hidden.items()}
        tracked = tracked_paths(self.repo)
        for dep in stage.deps:
            if any(path.startswith(f"{dep.fs_path}{os.sep}") for path in wanted):
                sweep(dep.fs_path, wanted | hidden.keys(), tracked)
        for path, text in hidden.items():
            put(Path(path), text)

    def _known(self, outs: Sequence[dict[str, Any]]) -> list["Output"]:
        """Return outputs of which there is no more than their entries in dvc.lock."""
        entry = {"cmd": "-", "outs": [dict(out) for out in outs]}
        found: list[Output] = locked_stage(self.repo, str(self.root / self.work.dvc_yaml), entry, str(self.root)).outs
        return found

    def _fetch(self, outs: list["Output"]) -> None:
        lacking = [out for out in outs if out.changed_cache()]
        if lacking:
            self.tell(f"fetching {', '.join(map(_path_of, lacking))}")
            self.store.fetch(lacking)
        for out in outs:
            out.checkout(force=True)

    def _check_inputs(self, stage: "Stage") -> None:
        """Refuse to run on anything else than what the run's machine has."""
        from dvc.dependency.base import DependencyDoesNotExistError

        try:
            save_inputs(stage)
        except DependencyDoesNotExistError as error:
            raise UserError(f"{error}; no stage makes it: put it into git, or under DVC's care by `dvc add`") from error
        for dep in stage.deps:
            expected = self.work.expected.get(dep.def_path)
            if dep.def_path in self.work.expected and dep.hash_info.value != expected:
                raise UserError(f"{dep} is not as on the run's machine ({dep.hash_info.value} here, {expected} there)")

    def _clear_outputs(self, stage: "Stage") -> None:
        """Take away what was written here before, and put there what the stage goes on from.

        What an attempt that was killed here has left in an output to persist is gone on from too.
        """
        for out in stage.outs:
            if not out.persist:
                out.remove()
        outs = {out.fs_path: out for out in self._known(self.work.persisted)}
        text = json.dumps(self.work.persisted, sort_keys=True)
        for out in (out for out in stage.outs if out.persist):
            if not (self._begun.exists() and self._begun.read_text() == text):
                self._go_on_from(out, outs.get(out.fs_path))
            out.unprotect()
        if any(out.persist for out in stage.outs):
            put(self._begun, text)

    @property
    def _begun(self) -> Path:
        """What the stage went on from, while it has not ended here."""
        return node_folder(self.root) / hashlib.md5(self.job.name.encode()).hexdigest()

    def _go_on_from(self, out: "Output", before: "Output | None") -> None:
        if before is None:
            out.remove()
            return
        try:
            self._fetch([before])
        except MissingError:
            out.remove()

    def _leave_outputs(self, stage: "PipelineStage", key: str | None) -> dict[str, Any]:
        """Put the outputs into the cache, on the remote, and last into the remote's run cache; return their entry."""
        from dvc.stage.serialize import to_single_stage_lockfile

        for out in stage.outs:
            save_output(out)
        entry = to_single_stage_lockfile(stage)
        outs = locked_stage(self.repo, stage.path, entry, stage.wdir).outs
        uncached = {out.fs_path for out in stage.outs if not out.use_cache}
        for out in outs:
            if out.fs_path in uncached:
                out.commit(relink=False)
        self.store.push(outs)
        if key:
            self.store.leave_run(key, entry)
        self._begun.unlink(missing_ok=True)
        return dict(entry)


def _here(root: Path) -> str:
    return f"node {socket.gethostname()}, {root}"


def _path_of(out: "Output") -> str:
    return os.path.relpath(out.fs_path, out.repo.root_dir)
