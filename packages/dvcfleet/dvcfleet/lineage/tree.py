"""The lineage of results: the stages that made them, back to the sources; and the results that depend on something."""

import posixpath
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from dvcfleet.disk import from_root, overlap
from dvcfleet.dvc_adapter.lockfiles import lock_file_of, names_by_lock_file, read_lock_file
from dvcfleet.dvc_adapter.protocols import Dependency, Output, Repo, Stage
from dvcfleet.dvc_adapter.repositories import tracked_paths
from dvcfleet.dvc_adapter.stages import in_dvc_yaml, is_metric, is_params, stage_graph
from dvcfleet.errors import UserError, some, stage_count
from dvcfleet.git import git_if_any
from dvcfleet.lineage.contents import path_from_root
from dvcfleet.lineage.hooks import hooks_of
from dvcfleet.lineage.steps import Artifact, FetchedSource, Lineage, LineageStep
from dvcfleet.messages import Result
from dvcfleet.options import Options
from dvcfleet.project import project_of
from dvcfleet.record.environments import read_environment
from dvcfleet.record.ledger import Execution, entry_digest, executions
from dvcfleet.repository import state_folder
from dvcfleet.terminal.secrets import masked


def read_lineage(repo: Repo, names: Sequence[str] = ()) -> Lineage:
    """Read the steps of the named stages (default: all) and their upstream stages, in an opened repository."""
    graph, order = stage_graph(repo, Options(tuple(names)))
    reader = _Reader(repo)
    steps: dict[str, LineageStep] = {}
    never_ran = []
    for stage in order:
        step = reader.step(stage, graph.successors(stage))
        if step is None:
            never_ran.append(stage.addressing)
        else:
            steps[step.stage] = step
    told = {stage.addressing: reader.told(stage, steps.get(stage.addressing)) for stage in order}
    digests = dict.fromkeys(one.environment for several in told.values() for one in several)
    contents = {digest: read_environment(state_folder(repo), digest) for digest in digests}
    environments = {digest: content for digest, content in contents.items() if content is not None}
    stages = {stage.addressing: stage for stage in order}
    root = Path(repo.root_dir)
    identity = project_of(root).identity(root)
    return Lineage(steps, environments, tuple(never_ran), stages, told, repository_of(root), identity)


def repository_of(root: Path) -> str | None:
    """Return the address of git's remote, with credentials masked; None if there is none."""
    url = git_if_any(root, "config", "--get", "remote.origin.url")
    return masked(url.strip()) if url and url.strip() else None


def step_of(stage: Stage, entry: Mapping[str, Any] | None) -> LineageStep:
    """Return a stage's inputs and outputs by its dvc.lock entry; without an entry, its declared inputs."""
    folder = from_root(stage.repo.root_dir, stage.wdir)
    known = entry or {}
    deps = known.get("deps") or [{"path": dep.def_path} for dep in stage.deps if not is_params(dep)]
    commands = known.get("cmd") or stage.cmd or []
    return LineageStep(
        stage=stage.addressing,
        description=stage.desc,
        commands=tuple([commands] if isinstance(commands, str) else commands),
        params={_joined(folder, file): dict(values) for file, values in known.get("params", {}).items()},
        inputs=tuple(_artifact(one, folder) for one in deps),
        outputs=tuple(_artifact(one, folder) for one in known.get("outs", ())),
        needs=(),
        execution=None,
    )


def recorded_entry(stage: Stage, lock_files: Mapping[str, Mapping[str, Any]]) -> dict[str, Any] | None:
    """Return DVC's record of a stage as a dvc.lock entry, given those of each dvc.lock; None if it never ran."""
    if in_dvc_yaml(stage):
        return lock_files[lock_file_of(stage)].get(stage.name)
    # A .dvc file is its own lock file.
    outs = [{"path": out.def_path, **_recorded(out)} for out in stage.outs if out.hash_info]
    deps = [{"path": dep.def_path, **_recorded(dep)} for dep in stage.deps if dep.protocol == "local"]
    return {"cmd": stage.cmd or [], "deps": deps, "outs": outs} if outs else None


def _recorded(item: Dependency | Output) -> dict[str, Any]:
    return {"md5": item.hash_info.value, "size": item.meta.size if item.meta else None}


class _Reader:
    """Reads steps; files that several steps need are read once."""

    def __init__(self, repo: Repo) -> None:
        self._repo = repo
        self._hooks = hooks_of(Path(repo.root_dir))
        self._outs: dict[str, list[str]] = {}

    def step(self, stage: Stage, upstream: Iterable[Stage]) -> LineageStep | None:
        self._outs[stage.addressing] = [path_from_root(out) for out in stage.outs]
        entry = recorded_entry(stage, self._locks)
        if entry is None:
            return None
        makers = {up.addressing: self._outs[up.addressing] for up in upstream}
        folder = from_root(self._repo.root_dir, stage.wdir)
        outputs = tuple(self._items(entry.get("outs", ()), folder, None))
        noted = self._executions.get((_bare(stage.addressing), entry_digest(entry)))
        return replace(
            step_of(stage, entry),
            inputs=tuple(self._items(entry.get("deps", ()), folder, makers)),
            outputs=outputs,
            needs=tuple(makers),
            execution=self._ran(noted),
            origins=tuple(self._origins(outputs)),
            tracking_run=next((run for item in outputs if (run := self._hooks.tracking_run(Path(item.path)))), None),
            renamed=noted if noted and noted.was else None,
            entry=entry_digest(entry),
        )

    def told(self, stage: Stage, step: LineageStep | None) -> tuple[Execution, ...]:
        """Return all executions of a stage in the ledger, oldest first, including those under earlier names."""
        told_executions = [one for one in self._lines.get(_bare(stage.addressing), ()) if one.result != Result.RENAMED]
        if step and step.execution and step.execution not in told_executions:
            told_executions.append(step.execution)
        return tuple(sorted(told_executions, key=lambda one: (one.began, one.ledger or "")))

    def _ran(self, noted: Execution | None) -> Execution | None:
        """Return the execution that made an entry, under this name or an earlier one."""
        seen = []
        while noted and noted.was and noted not in seen:  # names may have changed back
            seen.append(noted)
            noted = self._executions.get((_bare(noted.was["stage"]), noted.was["entry"]))
        return None if noted in seen else noted

    @cached_property
    def _locks(self) -> dict[str, Mapping[str, Any]]:
        return {path: read_lock_file(path) for path in names_by_lock_file(self._repo.index.stages)}

    @cached_property
    def _lines(self) -> dict[str, list[Execution]]:
        by_stage: dict[str, list[Execution]] = {}
        for execution in executions(state_folder(self._repo)):
            by_stage.setdefault(_bare(execution.stage), []).append(execution)
        return by_stage

    @cached_property
    def _executions(self) -> dict[tuple[str, str], Execution]:
        """The last execution of each entry: a run of this repository, else of another ledger, else no run.

        A restoration or a change of names counts only if no run is known.
        """
        by_place: dict[tuple[str, str], Execution] = {}
        for execution in (one for several in self._lines.values() for one in several):  # those of other ledgers first
            if execution.entry is None:
                continue
            key = (_bare(execution.stage), execution.entry)
            if execution.result == "done" or key not in by_place or by_place[key].result != "done":
                by_place[key] = execution
        return by_place

    def _items(
        self, recorded: Iterable[Mapping[str, Any]], folder: str, makers: Mapping[str, list[str]] | None
    ) -> Iterator[Artifact]:
        """Read the inputs or, without `makers`, the outputs of an entry."""
        for one in recorded:
            item = _artifact(one, folder)
            made_by = tuple(n for n, outs in (makers or {}).items() if any(overlap(item.path, out) for out in outs))
            kind: Literal["data", "code", "source"] = "data"
            if makers is not None and not made_by:
                kind = "code" if str(Path(self._repo.root_dir, item.path)) in tracked_paths(self._repo) else "source"
            yield replace(item, kind=kind, made_by=made_by, about=self._hooks.about(item.path, item.hash))

    def _origins(self, outputs: Iterable[Artifact]) -> Iterator[FetchedSource]:
        for item in outputs:
            origin = self._hooks.origin(Path(item.path)) if (item.hash or "").endswith(".dir") else None
            if origin:
                yield origin


def _artifact(one: Mapping[str, Any], folder: str) -> Artifact:
    return Artifact(_joined(folder, one["path"]), one.get("md5"), one.get("size"), "data")


def _joined(folder: str, path: str) -> str:
    return path if "://" in path or folder == "." else posixpath.normpath(posixpath.join(folder, path))


def _bare(stage: str) -> str:
    """Return a stage's name without its file, whose path DVC gives relative to the current folder."""
    return posixpath.basename(stage.rpartition(":")[2])


_SHORTEST = 6  # digits of a hash


@dataclass(frozen=True)
class Dependents:
    """What a text names, in words; the stages that read or wrote it, all later stages, and results among their outputs.

    `results`: outputs that are metrics, or that no stage reads.
    """

    text: str
    named: tuple[str, ...]
    stages: tuple[str, ...]
    results: tuple[str, ...]


def find_dependents(lineage: Lineage, text: str) -> Dependents:
    """Find all that depends on a text: a hash or its beginning, a path, a source, a package or `package==version`.

    A path or a source may be a pattern. Raises UserError if it names nothing.
    """
    named: dict[str, None] = {}
    first = set[str]()
    for step in lineage.steps.values():
        for words in _named_in(lineage, step, text):
            named[words] = None
            first.add(step.stage)
    if not named:
        raise UserError(f"{text}: no content, path, source or package that a recorded stage read, wrote or had")
    reached = dict.fromkeys(name for name, step in lineage.steps.items() if name in first)
    for name, step in lineage.steps.items():  # in topological order
        if name in first or any(up in reached for up in step.needs):
            reached[name] = None
    ordered = [name for name in lineage.steps if name in reached]
    return Dependents(text, tuple(named), tuple(ordered), tuple(_results(lineage, ordered)))


def _named_in(lineage: Lineage, step: LineageStep, text: str) -> Iterator[str]:
    is_hash = len(text) >= _SHORTEST and set(text) <= set("0123456789abcdef")
    for item in (*step.inputs, *step.outputs):
        if is_hash and item.hash and item.hash.startswith(text):
            yield f"{item.path}, md5 {item.hash}"
        elif fnmatch(item.path, text) or overlap(item.path, text):
            yield item.path
    for origin in step.origins:
        names = (origin.source, str(origin.details.get("hub", "")), *origin.licences)
        if any(name and fnmatch(name, text) for name in names) or origin.revision == text:
            yield f"{origin.path}, from {origin.source}{f'@{origin.revision}' if origin.revision else ''}"
        for name, file in origin.files.items():
            if is_hash and file["sha256"].startswith(text):
                yield f"{origin.path}/{name}, sha256 {file['sha256']}"
    if step.execution and (content := lineage.environments.get(step.execution.environment)):
        package, _, version = text.partition("==")
        there = content["packages"].get(package)
        if there is not None and version in ("", there):
            yield f"{package}=={there} in environment {step.execution.environment[:10]}"


def _results(lineage: Lineage, names: list[str]) -> Iterator[str]:
    read = {item.path for step in lineage.steps.values() for item in step.inputs}
    for name in names:
        metrics = {path_from_root(out) for out in lineage.stages[name].outs if is_metric(out)}
        for item in lineage.steps[name].outputs:
            if item.path in metrics or not any(overlap(item.path, path) for path in read):
                yield item.path


def dependents_lines(dependents: Dependents) -> Iterator[str]:
    """Return lines with what is named, and what depends on it."""
    yield from dependents.named
    yield f"{stage_count(len(dependents.stages), ' depends', ' depend')} on it: {some(dependents.stages, 10)}"
    yield f"{len(dependents.results)} {'result' if len(dependents.results) == 1 else 'results'}:"
    yield from (f"  {name}" for name in dependents.results)
