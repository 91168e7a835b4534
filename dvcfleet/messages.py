"""The messages between the parts of a run: data only."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from dvcfleet.planning.resources import Resources


@dataclass(frozen=True)
class Start:
    """When a stage's commands began, in seconds since 1970, on which machine, and its environment if not the run's."""

    began: float
    host: str
    environment: dict[str, Any] | None = None


@dataclass(frozen=True)
class NodeWork:
    """A stage's work for a node, besides what the clone says; paths are from the repository's root.

    Parameters are sent, code is not: the node writes `texts`, which are dvc.yaml and parameter files, but must already
    be at `commit`. `expected` holds the hashes of all that the stage reads, `inputs` those outputs of other stages that
    are among it, `gitignores` the .gitignore files in folders read whole, and `persisted` the previous content of
    outputs to persist; all outputs as dvc.lock has them. A `forced` stage runs even if it ran before.
    """

    dvc_yaml: str
    stage: str
    commit: str | None
    texts: dict[str, str]
    expected: dict[str, str | None]
    inputs: tuple[dict[str, Any], ...]
    gitignores: dict[str, str]
    persisted: tuple[dict[str, Any], ...]
    forced: bool


@dataclass(frozen=True)
class Command:
    """One command line, as `argv` with its shell, and as a Python module with its arguments if it can run warm."""

    line: str
    argv: tuple[str, ...]
    module: str | None = None
    arguments: tuple[str, ...] = ()


@dataclass(frozen=True)
class Job:
    """A stage's commands and all that a worker needs to run them, without DVC."""

    name: str
    commands: tuple[Command, ...]
    folder: str
    environment: dict[str, str]
    # Outputs to remove before the commands run, so that a second attempt does not find the first one's.
    clear: tuple[str, ...] = ()
    resources: Resources = field(default_factory=Resources)
    # Where the cold and the warm fork server listen; None: the worker has fork servers of its own.
    fork_servers: tuple[str, str] | None = None
    # What a node with a clone of its own needs besides.
    node: NodeWork | None = None
    # Whether it is for the run's own machine, wherever the others go.
    stays: bool = False


@dataclass(frozen=True)
class Outcome:
    """How a stage's commands ended; `exit_code` is negative for a signal, None if they were stopped or lost.

    `lost` means that nothing is known of the stage, since its worker went away. `why` says more than the exit code
    does, where there is more to say; `entry` is the stage's entry for dvc.lock, where a node made it, and `restored`
    means that the node found that the stage had run before.
    """

    name: str
    exit_code: int | None
    seconds: float = 0.0
    peak_rss_bytes: int = 0
    tail: tuple[str, ...] = ()
    entry: dict[str, Any] | None = None
    lost: bool = False
    why: str = ""
    restored: bool = False
    start: Start | None = None


class Result(StrEnum):
    """The result of a stage in a run."""

    DONE = "done"
    UP_TO_DATE = "up to date"
    RESTORED = "restored"
    FAILED = "failed"
    BLOCKED = "blocked"
    STOPPED = "stopped"


@dataclass(frozen=True)
class Ending:
    """How one stage ended in a run; `why` explains what did not go well."""

    name: str
    result: Result
    why: str = ""
    seconds: float = 0.0
    peak_rss_bytes: int = 0
    exit_code: int | None = None
    tail: tuple[str, ...] = ()
    start: Start | None = None
