"""The workspace of a run whose stages run on nodes: what is sent to a node, and what is kept of its results.

The hashes of inputs and outputs are computed from dvc.lock, since their data is on the DVC remote and on nodes. A
folder that several stages write into has no entry of its own: its hash is computed from the stages' joined listings.
DVC's `--allow-missing` treats such a folder, and a file in an output folder, as unchanged whenever it is missing.
"""

import hashlib
import os
import platform
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dvcfleet.disk import from_root
from dvcfleet.dvc_adapter.internals import under_git
from dvcfleet.dvc_adapter.objects import file_hash, folder_hash, in_cache, load_listing, outputs_near, outputs_trie
from dvcfleet.dvc_adapter.protocols import Dependency, Output, Repo, Stage
from dvcfleet.dvc_adapter.repositories import tracked_paths
from dvcfleet.dvc_adapter.stages import fill_from_lock, in_dvc_yaml, is_params, locked_stage, own_meta
from dvcfleet.errors import UserError
from dvcfleet.fast_paths import replaced
from dvcfleet.messages import Job, NodeWork, Outcome, Result
from dvcfleet.planning.plan import PlannedStage, StageChecks, State
from dvcfleet.planning.reasons import dependency_reasons, output_reasons
from dvcfleet.planning.resources import Resources
from dvcfleet.scheduling.order import Locality
from dvcfleet.worker.jobs import make_job
from dvcfleet.workspaces.local import LocalWorkspace, keep_aside
from dvcfleet.workspaces.nodes.clone import RUN_FILE, commit_for_nodes
from dvcfleet.workspaces.nodes.object_store import ObjectStore

if TYPE_CHECKING:
    from dvc_data.hashfile.tree import Tree


class RecordedHashes:
    """The hashes of inputs and outputs, without their data; `held` are those that the DVC remote holds."""

    def __init__(self, repo: Repo, store: ObjectStore) -> None:
        self._repo, self.store = repo, store
        self._trees: dict[str, Tree] = {}
        self._sources: dict[str, str] = {}
        self._gitignores: dict[str, str] = {}

    def checks_for(self, steps: Sequence[Stage]) -> StageChecks:
        """Return the checks for a plan's stages, given all of them in its order."""
        self._outs = outputs_trie(steps)
        self._steps = steps
        outs = [out for stage in steps for out in stage.outs if out.use_cache and out.hash_info]
        self.held = self.store.held({out.hash_info.value for out in outs})
        return self.checks

    @property
    def checks(self) -> StageChecks:
        """The checks of a stage without its data; the node that would run it finds out whether it has run before."""
        return StageChecks(self._dependency, self._output, ran_before=lambda stage: False, cached=lambda stage: False)

    def outputs_at(self, dep: Dependency) -> list[Output]:
        """Return the outputs at, above or below a dependency; empty for a source."""
        if is_params(dep) or dep.protocol != "local":
            return []
        return outputs_near(self._outs, dep)

    def inputs(self, stage: Stage) -> list[Output]:
        """Return the outputs that a stage reads."""
        outputs = {out.fs_path: out for dep in stage.deps for out in self.outputs_at(dep)}
        return list(outputs.values())

    def hash_of(self, dep: Dependency) -> str | None:
        """Return the hash of a dependency; None for a path that is missing from the output folder around it."""
        outs = self.outputs_at(dep)
        if not outs:
            return self._source(dep)
        if outs[0].fs_path == dep.fs_path:
            return str(outs[0].hash_info.value)
        if len(outs) == 1 and outs[0].fs.isin(dep.fs_path, outs[0].fs_path):
            return self._part(dep, outs[0])
        return self._whole(dep, outs)

    def gitignores(self, dep: Dependency) -> dict[str, str]:
        """Return the .gitignore files in a folder that stages write into: they are part of the folder's hash."""
        outs = [out for out in self.outputs_at(dep) if out.fs.isin(out.fs_path, dep.fs_path)]
        folders = dict.fromkeys(os.path.dirname(out.fs_path) for out in outs)
        texts = {os.path.join(folder, ".gitignore"): self._ignored(folder) for folder in folders}
        return {path: text for path, text in texts.items() if text}

    def _dependency(self, dep: Dependency) -> list[str]:
        if not self.outputs_at(dep):
            return dependency_reasons(dep)
        return [] if self.hash_of(dep) == dep.hash_info.value else [f"dep {dep} changed"]

    def _output(self, out: Output) -> list[str]:
        # Uncached outputs are files of this machine; data added by `dvc add` may have been edited here.
        if not out.use_cache or (not out.stage.cmd and out.exists):
            return output_reasons(out)
        if out.hash_info.value in self.held or in_cache(out):
            return []
        return [f"output {out} is neither in the cache nor on the DVC remote"]

    def _source(self, dep: Dependency) -> str:
        if dep.fs_path not in self._sources:
            self._sources[dep.fs_path] = str(dep.get_hash().value)
        return self._sources[dep.fs_path]

    def _part(self, dep: Dependency, out: Output) -> str | None:
        """Return the hash of a file or folder in an output folder."""
        key = dep.fs.relparts(dep.fs_path, out.fs_path)
        tree = self._tree(out)
        entry = tree.get(key)
        if entry and entry[1]:
            return str(entry[1].value)
        part = tree.get_obj(out.cache, key)
        return str(part.hash_info.value) if part and part.hash_info else None

    def _whole(self, dep: Dependency, outs: Iterable[Output]) -> str:
        """Return the hash that DVC would find for a folder that several stages write into."""
        files: dict[str, str] = {}
        for out in outs:
            place = out.fs.relparts(out.fs_path, dep.fs_path)
            if out.hash_info.isdir:
                files |= {"/".join((*place, *key)): info.value for key, _, info in self._tree(out)}
            else:
                files["/".join(place)] = out.hash_info.value
        gitignores = self.gitignores(dep)
        texts = {path: hashlib.md5(text.encode()).hexdigest() for path, text in gitignores.items()}
        for path, digest in (self._tracked_in(dep) | texts).items():
            files[from_root(dep.fs_path, path)] = digest
        return folder_hash(files)

    def _tree(self, out: Output) -> "Tree":
        value = out.hash_info.value
        if value not in self._trees:
            self.store.fetch_listing(out.hash_info)
            self._trees[value] = load_listing(out)
        return self._trees[value]

    def _tracked_in(self, dep: Dependency) -> dict[str, str]:
        """Return the hashes of a folder's files that git tracks."""
        paths = [
            path for path in tracked_paths(self._repo) if path.startswith(dep.fs_path + os.sep) and os.path.isfile(path)
        ]
        ignored = self._repo.dvcignore.is_ignored_file
        return {path: file_hash(self._repo, path) for path in paths if not ignored(path)}

    def _ignored(self, folder: str) -> str:
        """Return the text of a folder's .gitignore at the end of a run: its outputs in the plan's order."""
        if folder not in self._gitignores:
            path = Path(folder, ".gitignore")
            text = path.read_text(encoding="utf-8") if path.is_file() else ""
            for line in self._lines(folder):
                if line not in text.splitlines():
                    text += f"{'' if text.endswith(chr(10)) or not text else chr(10)}{line}\n"
            self._gitignores[folder] = text
        return self._gitignores[folder]

    def _lines(self, folder: str) -> Iterator[str]:
        from pathspec.patterns import GitWildMatchPattern

        if not under_git(self._repo):
            return
        for out in (out for stage in self._steps for out in stage.outs if out.use_scm_ignore):
            if os.path.dirname(out.fs_path) == folder and not self._repo.scm.is_ignored(out.fs_path):
                yield GitWildMatchPattern.escape(f"/{os.path.basename(out.fs_path)}")


def stays(stage: Stage) -> bool:
    """Tell whether a stage runs here: data, imports and `dvcfleet: {place: flow}`; raise UserError for other places."""
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
        lacking = [out for out in outs if not out.exists or out.changed_checksum()]
        cached = [out for out in lacking if out.use_cache]
        uncached = self._as_cached([out for out in lacking if not out.use_cache])
        self.recorded.store.fetch([out for out in cached + uncached if not in_cache(out)])
        for stage in dict.fromkeys(out.stage for out in lacking):
            keep_aside(stage, self.local.say)
        for out in cached:
            out.checkout(force=True)
            self.local.hide_from_git(out.stage)
        with replaced(self._repo.cache.local, "cache_types", ["copy"]):
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
