"""What lineage tells: the steps that made results, their inputs, outputs and sources; and the target that was asked."""

import json
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import quote

from dvcfleet.dvc_adapter.protocols import Stage
from dvcfleet.messages import Result
from dvcfleet.record.ledger import Execution
from dvcfleet.terminal.secrets import masked


@dataclass(frozen=True)
class Artifact:
    """A file or folder that a stage read or wrote, with its hash in dvc.lock.

    `hash` is the md5 of a file's bytes, or that of a folder's listing with the suffix `.dir`; None if DVC recorded
    another kind. `kind`: data is written by a stage, code is tracked by git, and a source is neither. `about`: what the
    repository's project says of it.
    """

    path: str
    hash: str | None
    size: int | None
    kind: Literal["data", "code", "source"]
    made_by: tuple[str, ...] = ()
    about: str | None = None

    @property
    def content(self) -> str:
        """The name of one content at one path, in exports."""
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
        """The name of one revision of it, in exports."""
        return f"{self.revision or 'unpinned'}/{self.name}"

    @property
    def name(self) -> str:
        """Its name on a hub, or where it is."""
        return str(self.details.get("hub", self.source))

    @property
    def licences(self) -> tuple[str, ...]:
        """The licences that its card or a file beside it gives, by id or by the name of one of its own."""
        found = [self.details.get(key) or [] for key in ("license", "license_name", "license_in_file")]
        return tuple(name for each in found for name in ([each] if isinstance(each, str) else each))


@dataclass(frozen=True)
class TrackingRun:
    """A run of an experiment tracker, by the tracker's name and the run's id in it."""

    tracker: str
    id: str


@dataclass(frozen=True)
class LineageStep:
    """One stage's last execution: inputs, outputs, command, and time and host if this engine ran it.

    `renamed`: when names alone changed since then; the execution has the name of then.
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
        """Return what an execution of a stage read and wrote; None if its entry is no longer in dvc.lock."""
        step = self.steps.get(stage)
        return step if step and (one == step.execution or (one.entry and one.entry == step.entry)) else None

    def maker(self, stage: str) -> Execution | None:
        """Return the first execution that wrote a stage's present outputs; other ledgers count if our own has none."""
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
    """Return what the name of an execution in exports ends with, if another ledger than the repository's own has it."""
    return f"/{one.ledger}" if one.ledger else ""


def identifier(kind: str, name: str) -> str:
    """Return what a thing is called in every export, after `urn:dvcfleet:`; credentials are masked."""
    return f"{kind}:{quote(masked(name), safe='/@')}"


def as_text(value: Any) -> str:
    """Write a value for an export, masked: text as it is, all else as JSON."""
    return masked(value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=str))
