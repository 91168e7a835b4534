"""The data of lineage: steps with their inputs, outputs and sources, targets and findings; and witnesses of dvc.lock.

A line of a ledger or git vouches for an entry of dvc.lock, or for stages run by `dvc repro` DVC's run cache. The run
cache, to which `dvc commit` adds entries too, does not vouch for other bytes than a recorded run wrote from the same
inputs.
"""

import json
import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

from dvcfleet.disk import read_json
from dvcfleet.dvc_adapter.lockfiles import lock_file_of, parse_lock_file, read_lock_file
from dvcfleet.dvc_adapter.protocols import PipelineStage, Repo, Stage
from dvcfleet.dvc_adapter.run_cache import has_runs, keeps_runs, run_key, runs_like, without_sizes
from dvcfleet.dvc_adapter.stages import in_dvc_yaml, varying
from dvcfleet.git import git_if_any
from dvcfleet.messages import Result
from dvcfleet.record.ledger import Execution, entry_digest
from dvcfleet.terminal.secrets import masked


class FindingKind(StrEnum):
    """Kinds of differences from the record; a project's audit has further ones."""

    MISSING = "missing"
    CHANGED = "changed"
    UNKNOWN = "unknown file"
    CODE = "code changed"
    SOURCE = "source changed"
    PARAMS = "parameter changed"
    STAGE = "stage changed"
    NEVER_RAN = "never ran"
    UNDECLARED = "no longer declared"
    OUTDATED = "outdated"
    CACHE = "cache changed"
    RECORD = "record changed"
    NOT_REPRODUCED = "not reproduced"
    UNPROVEN = "unproven"


@dataclass(frozen=True)
class Finding:
    """One difference from the record: the file, parameter or run, the kind, and the stages concerned."""

    kind: StrEnum
    name: str
    message: str
    stages: tuple[str, ...] = ()

    def __str__(self) -> str:
        name = self.name.replace("\n", "\\n")  # a file of an archive may be named as the next finding's line
        return f"{self.kind.value}: {name}: {self.message}"


@dataclass(frozen=True)
class Artifact:
    """An input or output of a stage, with its hash in dvc.lock.

    `hash` is the md5 of a file's bytes, or that of a folder's list of files with the suffix `.dir`; None if DVC
    recorded another kind. `kind`: data is written by a stage, code is tracked by git, and a source is neither.
    `about`: the project's description.
    """

    path: str
    hash: str | None
    size: int | None
    kind: Literal["data", "code", "source"]
    made_by: tuple[str, ...] = ()
    about: str | None = None

    @property
    def content(self) -> str:
        """The name of this content at this path, in exports."""
        return f"{self.hash or 'unknown'}/{self.path}"


@dataclass(frozen=True)
class FetchedSource:
    """The source of a fetched folder, as recorded in it; `files` gives the `sha256` of each."""

    path: str
    source: str
    kind: str
    revision: str | None
    files: dict[str, dict[str, Any]]
    details: dict[str, Any]

    @property
    def content(self) -> str:
        """The name of this revision, in exports."""
        return f"{self.revision or 'unpinned'}/{self.name}"

    @property
    def name(self) -> str:
        """Its name on a hub, or its place."""
        return str(self.details.get("hub", self.source))

    @property
    def licences(self) -> tuple[str, ...]:
        """The licences in its card or licence file, by id or by their own names."""
        values = [self.details.get(key) or [] for key in ("license", "license_name", "license_in_file")]
        return tuple(name for each in values for name in ([each] if isinstance(each, str) else each))


@dataclass(frozen=True)
class TrackingRun:
    """A run of an experiment tracker, by the tracker's name and the run's id in it."""

    tracker: str
    id: str


@dataclass(frozen=True)
class LineageStep:
    """One stage's last execution: inputs, outputs, command, and time and host if this engine ran it.

    `renamed`: the time of a later change of names alone; the execution has the earlier name.
    """

    stage: str
    description: str | None
    commands: tuple[str, ...]
    params: dict[str, dict[str, Any]]
    inputs: tuple[Artifact, ...]
    outputs: tuple[Artifact, ...]
    needs: tuple[str, ...]
    execution: Execution | None
    origins: tuple[FetchedSource, ...] = ()
    # The experiment tracker's run that one of its outputs refers to.
    tracking_run: TrackingRun | None = None
    renamed: Execution | None = None
    entry: str | None = None  # the digest of its entry in dvc.lock


@dataclass(frozen=True)
class Lineage:
    """Steps in topological order; environments by their digest; and the requested stages that never ran.

    `executions`: all that the ledger knows of, by their stages, oldest first: those that failed, and that restored
    what had run before, too. `repository`: the address of git's remote, if there is one. `identity`: what tells the
    repository from others that share git's experiments, see `dvcfleet.project.Project.identity`.
    """

    steps: dict[str, LineageStep]
    environments: dict[str, dict[str, Any]]
    never_ran: tuple[str, ...] = ()
    stages: dict[str, Stage] = field(default_factory=dict, repr=False, compare=False)
    executions: dict[str, tuple[Execution, ...]] = field(default_factory=dict, repr=False)
    repository: str | None = None
    identity: str = ""

    def step_of(self, stage: str, one: Execution) -> LineageStep | None:
        """Return the inputs and outputs of an execution of a stage; None if its entry is no longer in dvc.lock."""
        step = self.steps.get(stage)
        return step if step and (one == step.execution or (one.entry and one.entry == step.entry)) else None

    def maker(self, stage: str) -> Execution | None:
        """Return the first execution that wrote a stage's current outputs; other ledgers count if our own has none."""
        several = [one for one in self.executions.get(stage, ()) if self.step_of(stage, one)]
        made = sorted((one for one in several if one.result == Result.DONE), key=lambda one: one.ledger is not None)
        return next(iter(made), self.steps[stage].execution)


@dataclass(frozen=True)
class Target:
    """A target: the files that hold it, the stages that wrote them, and its value if it is a number."""

    text: str
    stages: tuple[str, ...]
    files: tuple[str, ...]
    value: Any = None


def by_ledger(one: Execution) -> str:
    """Return the suffix of an execution's name in exports, if it is in another ledger than the repository's own."""
    return f"/{one.ledger}" if one.ledger else ""


def identifier(kind: str, name: str) -> str:
    """Return the name of a thing in every export, after `urn:dvcfleet:`; credentials are masked."""
    return f"{kind}:{quote(masked(name), safe='/@')}"


def as_text(value: Any) -> str:
    """Return a value as text for an export, masked: a text as it is, anything else as JSON."""
    return masked(value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=str))


_CURE = "`run --force` with its name makes it again"
_RESTORED = f"a run restored it from DVC's run cache, and no ledger says who made it: copy theirs here, or {_CURE}"
_EDITED = f"no ledger, nor DVC's run cache or git, has the output that dvc.lock records: edited; {_CURE}"
_OTHER = (
    f"no ledger has the output that dvc.lock records, and a run wrote other bytes from the same inputs: it was "
    f"edited, or `dvc commit` or `dvc repro --force` wrote it; {_CURE}"
)
_COMMITS = 20  # of git that are asked for an entry
_EXPERIMENTS = 5  # the last ones, which are asked for other bytes from the same inputs


def check_witnesses(repo: Repo, lineage: Lineage, made: Collection[str], known: Collection[str]) -> Iterator[Finding]:
    """Find stages with an entry in dvc.lock that has no witness.

    `made`: the digests of entries that commands made, by any ledger. `known`: stages with other findings, which get
    no second one.
    """
    doubtful = [
        (lineage.stages[name], why)
        for name, step in lineage.steps.items()
        if name not in known and (why := _doubt(lineage, step, made))
    ]
    witnesses = _Witnesses(repo, made)
    for stage, why in doubtful:
        reason = witnesses.check(stage, why) if in_dvc_yaml(stage) else None
        if reason:
            yield Finding(FindingKind.UNPROVEN, stage.addressing, reason, (stage.addressing,))


def without_line(lineage: Lineage) -> list[str]:
    """Return the stages that ran outside this engine, as far as the ledgers know."""
    steps = [step for step in lineage.steps.values() if step.execution is None and step.renamed is None]
    return [step.stage for step in steps if lineage.stages[step.stage].cmd]


def _doubt(lineage: Lineage, step: LineageStep, made: Collection[str]) -> str | None:
    """Return what is wrong with a step if neither git nor the run cache vouches for it; None if a ledger does."""
    ran, stage = step.execution, lineage.stages[step.stage]
    if step.entry in made or not stage.cmd or stage.frozen:
        return None
    if ran:
        return _RESTORED if ran.result == Result.RESTORED and ran.unproven else None
    return _EDITED if any(one.entry for one in lineage.executions.get(step.stage, ())) else None


class _Witnesses:
    """Asks git and the run cache; values that several stages need are read once."""

    def __init__(self, repo: Repo, made: Collection[str]) -> None:
        self._repo, self._made = repo, made
        self._entries: dict[tuple[str, str], Mapping[str, Any]] = {}

    def check(self, stage: PipelineStage, doubt: str) -> str | None:
        """Return what is wrong with a stage's entry; None if it has a witness."""
        path = lock_file_of(stage)
        entry = self._read("", path)[stage.name]
        if doubt is _RESTORED:
            return None if self._in_git(path, stage, entry) else doubt
        with suppress(ValueError):  # of a value that the run cache does not take
            if keeps_runs(stage):
                return self._beside(stage, path, entry)
        return None

    def _beside(self, stage: PipelineStage, path: str, entry: Mapping[str, Any]) -> str | None:
        """Compare an entry without a ledger line with others of the same command and inputs."""
        kept, varies = runs_like(stage, dict(entry)), varying(stage)
        wrote, key = _outs(self._repo, entry, varies), run_key(dict(entry))
        saved = [self._read(commit, path).get(stage.name) for commit in self._experiments]
        like = [*kept, *(each for each in saved if each and run_key(dict(each)) == key)]
        made = [each for each in like if entry_digest(each) in self._made]
        if any(_differ(wrote, _outs(self._repo, each, varies)) for each in made):
            return _OTHER
        if not has_runs(self._repo) or any(without_sizes(each) == without_sizes(dict(entry)) for each in kept):
            return None
        return None if self._in_git(path, stage, entry) else _EDITED

    @cached_property
    def _experiments(self) -> list[str]:
        asked = ("for-each-ref", "--sort=-committerdate", f"--count={_EXPERIMENTS}", "--format=%(objectname)")
        return (git_if_any(self._repo.root_dir, *asked, "refs/exps") or "").split()

    def _in_git(self, path: str, stage: PipelineStage, entry: Mapping[str, Any]) -> bool:
        """Tell whether a commit on a branch has the entry, apart from sizes."""
        name, folder = stage.name, os.path.dirname(path)
        wanted = without_sizes(dict(entry))
        if without_sizes(dict(self._read("HEAD", path).get(name, {}))) == wanted:
            return True
        hashes = [out["md5"] for out in entry.get("outs", ()) if "md5" in out][:1]
        asked = ("log", f"-n{_COMMITS}", "--format=%H", "HEAD", "--branches", "--tags", "--remotes")
        listed = [git_if_any(folder, *asked, f"-S{md5}", "--", os.path.basename(path)) or "" for md5 in hashes]
        commits = " ".join(listed).split()
        return any(without_sizes(dict(self._read(each, path).get(name, {}))) == wanted for each in commits)

    def _read(self, commit: str, path: str) -> Mapping[str, Any]:
        """Return the entries of a dvc.lock, in the workspace or in a commit."""
        if (commit, path) not in self._entries:
            folder, name = os.path.split(path)
            text = git_if_any(folder, "show", f"{commit}:./{name}") if commit else None
            self._entries[commit, path] = parse_lock_file(text or "", name) if commit else read_lock_file(path)
        return self._entries[commit, path]


def _outs(repo: Repo, entry: Mapping[str, Any], varies: Mapping[str, bool | list[str]]) -> dict[str, Any]:
    """Return an entry's outputs: hashes, or the content of a JSON file without the keys that vary."""
    outs = {}
    for out in entry.get("outs", ()):
        path, md5, keys = out["path"], out.get("md5"), varies.get(out["path"])
        content = read_json(Path(repo.cache.local.oid_to_path(md5))) if md5 and isinstance(keys, list) else None
        if not keys:
            outs[path] = md5
        elif isinstance(keys, list) and content is not None:
            outs[path] = {key: value for key, value in content.items() if key not in keys}
    return outs


def _differ(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return any(one[path] != other[path] for path in one.keys() & other.keys())
