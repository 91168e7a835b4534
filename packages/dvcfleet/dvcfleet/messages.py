"""The messages between the parts of a run, as plain data."""

import signal
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from dvcfleet.planning.resources import Resources


@dataclass(frozen=True)
class Start:
    """The start of a stage's commands (seconds since 1970), the host, and the environment if not the run's."""

    began: float
    host: str
    environment: dict[str, Any] | None = None


@dataclass(frozen=True)
class NodeWork:
    """What a node needs to run a stage besides its clone; paths are relative to the repository's root.

    Parameters are sent, code is not: the node writes `texts` (dvc.yaml, parameter files, whose run it is), but must be
    at `commit`. `expected` holds the hashes of all the stage's inputs, `inputs` those that other stages wrote,
    `gitignores` the .gitignore files in folders read as a whole, and `persisted` the previous content of persistent
    outputs; outputs are in dvc.lock's form. A `forced` stage runs even if it ran before.
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
    """One command: `argv` to run it in its shell, and its Python module and arguments if it can run warm."""

    line: str
    argv: tuple[str, ...]
    module: str | None = None
    arguments: tuple[str, ...] = ()


@dataclass(frozen=True)
class Job:
    """A stage's commands and everything that a worker needs to run them without DVC.

    `root`: the repository's root. `run`: the run's name. `limits`: the variables that limit its libraries' threads.
    `gpus`: those that the run gave it by name; None if the run counts none, or its worker chooses them.
    """

    name: str
    commands: tuple[Command, ...]
    folder: str
    root: str
    limits: dict[str, str] = field(default_factory=dict)
    gpus: tuple[str, ...] | None = None
    # Outputs to remove before the commands run, so that a second attempt does not see the first one's.
    clear: tuple[str, ...] = ()
    resources: Resources = field(default_factory=Resources)
    # Addresses of the cold and the warm fork server, if there is one; None: the worker starts its own.
    fork_servers: tuple[str, str | None] | None = None
    # For a node with its own clone.
    node: NodeWork | None = None
    # Whether it must run on the run's own machine.
    stays: bool = False
    # The cluster's name for the machine chosen for it; empty: the cluster chooses one.
    machine: str = ""
    run: str = ""


@dataclass(frozen=True)
class Usage:
    """The CPU and GPU seconds and disk bytes of a stage's commands, and of the processes they waited for.

    `gpu_s`: for how long GPUs were held, summed over them. `read_bytes`, `written_bytes`: from and to disks, without
    what came from the page cache.
    """

    cpu_s: float = 0.0
    gpu_s: float = 0.0
    read_bytes: int = 0
    written_bytes: int = 0


@dataclass(frozen=True)
class Outcome:
    """How a stage's commands ended; `exit_code` is negative for a signal, None if they were stopped or lost.

    `lost` means that the worker was lost, so the result is unknown. `why` explains the exit code if there is more to
    say. A node sets `entry`, the stage's entry for dvc.lock, and `restored` if the stage had run before. `machine`: the
    cluster's name for the machine that was chosen for it, which the run's loop sets.
    """

    name: str
    exit_code: int | None
    seconds: float = 0.0
    peak_rss_bytes: int = 0
    usage: Usage = field(default_factory=Usage)
    tail: tuple[str, ...] = ()
    entry: dict[str, Any] | None = None
    lost: bool = False
    why: str = ""
    restored: bool = False
    start: Start | None = None
    machine: str = ""

    @property
    def failure(self) -> str:
        """Return why the stage's commands did not succeed."""
        code = self.exit_code
        if self.why or code is None:
            return self.why
        words = f"exit code {code}" if code > 0 else f"killed by signal {-code}"
        # The second is the exit code of a shell whose command was killed.
        return f"{words}, {OUT_OF_MEMORY}" if code in (-signal.SIGKILL, 128 + signal.SIGKILL) else words


class Result(StrEnum):
    """The result of a stage in a run, or of a change of names alone."""

    DONE = "done"
    UP_TO_DATE = "up to date"
    RESTORED = "restored"
    RENAMED = "renamed"  # not in a run: what it read and wrote got other names
    FAILED = "failed"
    BLOCKED = "blocked"
    STOPPED = "stopped"


NOT_RUN = Outcome("", None)
# What is said of a process that was killed: the kernel does so, and tells nobody.
OUT_OF_MEMORY = "as when memory runs out (use fewer --workers, or declare its memory)"


@dataclass(frozen=True)
class Ending:
    """How one stage ended in a run; `why` explains a failure, `outcome` tells of its commands if they ran."""

    name: str
    result: Result
    why: str = ""
    outcome: Outcome = NOT_RUN
