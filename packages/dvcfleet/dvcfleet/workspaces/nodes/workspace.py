"""The workspace of a run whose stages run on nodes: what is sent to a node, and what is kept of its results."""

import os
import platform
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from dvcfleet.disk import from_root
from dvcfleet.dvc_adapter.objects import in_cache
from dvcfleet.dvc_adapter.protocols import Output, Repo, Stage
from dvcfleet.dvc_adapter.repositories import as_copies
from dvcfleet.dvc_adapter.stages import fill_from_lock, in_dvc_yaml, is_params, locked_stage, own_meta
from dvcfleet.errors import UserError
from dvcfleet.messages import Job, NodeWork, Outcome, Result
from dvcfleet.planning.plan import PlannedStage, State
from dvcfleet.planning.resources import Resources
from dvcfleet.scheduling.order import Locality
from dvcfleet.worker.jobs import make_job
from dvcfleet.workspaces.local import LocalWorkspace, keep_aside
from dvcfleet.workspaces.nodes.clone import RUN_FILE, commit_for_nodes
from dvcfleet.workspaces.nodes.recorded_hashes import RecordedHashes


def stays(stage: Stage) -> bool:
    """Tell whether a stage runs on the run's machine: DVC's data and imports, and stages whose `meta` says
    `dvcfleet: {place: flow}`.

    Raises UserError for any other place.
    """
    meta, where = own_meta(stage)
    place = meta.get("place")
    if place not in (None, "flow"):
        raise UserError(f"{where}.place should be flow or left out, got {place!r}")
    return place == "flow" or not stage.cmd or stage.frozen


@dataclass
class NodeWorkspace:
    """The workspace of a run whose workers are nodes with their own clones; `local` is for the stages that stay.

    This machine keeps only the hashes of the nodes' outputs, in dvc.lock. A `forced` run does not use the run cache.
    """

    local: LocalWorkspace
    recorded: RecordedHashes
    forced: bool = False

    locality: Locality = field(init=False)

    def __post_init__(self) -> None:
        # Refuse a wrong `place` before any stage runs.
        for stage in self.local.plan.stages.values():
            stays(stage)
        self._commit = commit_for_nodes(self._repo)
        self.locality = Locality(self._inputs)

    @property
    def _repo(self) -> Repo:
        return self.local.repo

    @property
    def from_run_cache(self) -> set[str]:
        """The stages whose outputs came from this machine's run cache."""
        return self.local.from_run_cache

    def prepare(self, stage: Stage, planned: PlannedStage) -> tuple[Result | None, str]:
        """Settle a stage without running it if possible, else push the inputs that its node will fetch."""
        if not stage.cmd or stage.frozen:
            if not stage.deps and not all(out.exists for out in stage.outs):
                return Result.FAILED, f"{', '.join(planned.reasons)}; `dvc push` it where it was added"
            return self.local.prepare(stage, planned)
        if not planned.must_run:
            planned = self.local.plan.judge(stage, checks=self.recorded.checks)
        why = ", ".join(planned.reasons)
        if planned.state is State.UP_TO_DATE:
            return Result.UP_TO_DATE, ""
        if planned.state is State.BLOCKED:
            return Result.BLOCKED, why
        inputs = self.recorded.inputs(stage)
        if stays(stage):
            self._fetch(inputs)
            return self.local.prepare(stage, replace(planned, state=State.STALE, must_run=True, outputs_known=False))
        persisted = [out for out in stage.outs if out.persist and out.hash_info and in_cache(out)]
        self._push([*inputs, *persisted])
        keep_aside(stage, self.local.say)
        for out in stage.outs:
            # Otherwise DVC would treat the old content as a changed output.
            out.remove()
        return None, why

    def job(self, stage: Stage, resources: Resources) -> Job:
        """Return the job for a node, or for this machine if the stage stays."""
        if stays(stage):
            return replace(self.local.job(stage, resources), stays=True)
        if not in_dvc_yaml(stage):
            raise UserError(f"{stage.addressing}: nodes run only stages of a dvc.yaml; move it into one")
        gitignores = {path: text for dep in stage.deps for path, text in self.recorded.gitignores(dep).items()}
        work = NodeWork(
            dvc_yaml=from_root(self._repo.root_dir, stage.path),
            stage=stage.name,
            commit=self._commit,
            texts=self._texts,
            expected={dep.def_path: self.recorded.hash_of(dep) for dep in stage.deps if not is_params(dep)},
            inputs=tuple(self._entry(out) for out in self.recorded.inputs(stage)),
            gitignores={from_root(self._repo.root_dir, path): text for path, text in gitignores.items()},
            persisted=tuple(self._entry(out) for out in stage.outs if out.persist and out.hash_info),
            forced=self.forced,
        )
        # The node limits its threads itself: it makes the job again, in its own environment.
        return replace(make_job(stage, resources), limits={}, node=work)

    def _inputs(self, name: str) -> Mapping[str, float]:
        """Return the bytes of a ready stage's inputs by their hashes; nothing for one that stays."""
        stage = self.local.plan.stages[name]
        inputs = [] if stays(stage) else self.recorded.inputs(stage)
        return {str(out.hash_info.value): out.meta.size or 0 for out in inputs}

    def storing(self, stage: Stage, outcome: Outcome) -> Callable[[], None] | None:
        """Return a function that stores large outputs in this machine's cache; None if they are on a node."""
        return None if outcome.entry else self.local.storing(stage, outcome)

    def keep(self, stage: Stage, outcome: Outcome) -> tuple[dict[str, Any] | None, list[str]]:
        """Keep the entry that a node returned, and fetch only the outputs that DVC does not cache.

        Changes of inputs here during the node's run are not reported: the node has its own inputs.
        """
        if outcome.entry is None:
            return self.local.keep(stage, outcome)
        assert in_dvc_yaml(stage)
        fill_from_lock(stage, outcome.entry)
        self.recorded.held |= {out.hash_info.value for out in stage.outs}
        if not outcome.restored:
            self.locality.note(outcome.machine, (str(out.hash_info.value) for out in stage.outs))
        self._fetch(out for out in stage.outs if not out.use_cache)
        return outcome.entry, []

    def finish(self, fetch_results: bool) -> None:
        """Push this machine's own outputs; with `fetch_results`, fetch all outputs of the run's stages."""
        outs = [out for stage in self.local.plan.stages.values() for out in stage.outs if out.hash_info]
        mine = [out for out in outs if out.use_cache and not self._is_held(out) and in_cache(out)]
        self._push(mine)
        if fetch_results:
            self._fetch(out for out in outs if out.use_cache and self._is_held(out))

    def _push(self, outs: Iterable[Output]) -> None:
        """Push the outputs that the remote lacks, including uncached ones."""
        lacking = [out for out in outs if not self._is_held(out)]
        uncached = self._as_cached([out for out in lacking if not out.use_cache])
        for out in uncached:
            out.commit(relink=False)
        if lacking:
            self.recorded.store.push([out for out in lacking if out.use_cache] + uncached)
            self.recorded.held |= {out.hash_info.value for out in lacking}

    def _is_held(self, out: Output) -> bool:
        return out.hash_info.value in self.recorded.held

    def _fetch(self, outs: Iterable[Output]) -> None:
        """Fetch outputs into the workspace."""
        lacking = [out for out in outs if not out.exists or out.changed_checksum()]
        cached = [out for out in lacking if out.use_cache]
        uncached = self._as_cached([out for out in lacking if not out.use_cache])
        self.recorded.store.fetch([out for out in cached + uncached if not in_cache(out)])
        for stage in dict.fromkeys(out.stage for out in lacking):
            keep_aside(stage, self.local.say)
        for out in cached:
            out.checkout(force=True)
            self.local.hide_from_git(out.stage)
        with as_copies(self._repo):
            for out in uncached:
                out.checkout(force=True)

    def _as_cached(self, outs: list[Output]) -> list[Output]:
        """Return outputs that DVC does not cache as if it cached them."""
        entry = {"cmd": "-", "outs": [self._entry(out) for out in outs]}
        path = os.path.join(self._repo.root_dir, "dvc.yaml")
        return locked_stage(self._repo, path, entry, self._repo.root_dir).outs if outs else []

    def _entry(self, out: Output) -> dict[str, Any]:
        """Return an output's part of an entry in dvc.lock, its path from the repository's root."""
        meta = {key: value for key, value in out.meta.to_dict().items() if key != "isdir"}
        return {"path": from_root(self._repo.root_dir, out.fs_path), "hash": "md5", **meta, "md5": out.hash_info.value}

    @cached_property
    def _texts(self) -> dict[str, str]:
        """The dvc.yaml and parameter files of the plan's stages, as they are now, and whose run it is."""
        paths: dict[str, None] = {}
        for stage in self.local.plan.stages.values():
            if not (stage.cmd and in_dvc_yaml(stage)):
                continue
            folder = os.path.dirname(stage.path)
            paths |= dict.fromkeys([stage.path, os.path.join(folder, "params.yaml")])
            paths |= dict.fromkeys(os.path.abspath(path) for path in stage.tracked_vars)
            paths |= dict.fromkeys(dep.fs_path for dep in stage.params)
        root = self._repo.root_dir + os.sep
        texts = {RUN_FILE: f"{platform.node()}:{self._repo.root_dir}"}
        for path in paths:
            if path.startswith(root) and os.path.isfile(path):
                with open(path, encoding="utf-8") as file:
                    texts[from_root(self._repo.root_dir, path)] = file.read()
        return texts
