"""SLURM's own commands: what its nodes are, what has become of jobs, and how they are ended."""

import getpass
import math
import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dvcfleet.errors import UserError, in_one_line
from dvcfleet.runners.slurm.walltime import seconds_of

_LIMIT_S = 60.0
# States of a job that has not begun, or that SLURM has queued again.
_WAITING = ("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "RESV_DEL_HOLD")
# It is in one of these for a moment longer than its processes are there.
ENDING = ("RUNNING", "COMPLETING", "SIGNALING", "STAGE_OUT")
ALIVE = (*_WAITING, *ENDING, "SUSPENDED", "STOPPED", "RESIZING")


class SlurmError(RuntimeError):
    """A command of SLURM's failed; the message is its own."""


@dataclass(frozen=True)
class Site:
    """The limits of jobs: threads on all nodes, the longest time in seconds, the nodes' addresses and states."""

    threads: int
    most_s: float
    addresses: tuple[str, ...]
    states: str = ""


@dataclass(frozen=True)
class JobState:
    """The state of a job, and the reason that SLURM gives for it."""

    state: str
    reason: str

    def __str__(self) -> str:
        return self.state if self.reason in ("", "None") else f"{self.state} ({self.reason})"


def called(*command: str) -> str:
    """Run a command of SLURM's and return what it printed; raise SlurmError if it fails."""
    try:
        done = subprocess.run(
            command, capture_output=True, encoding="utf-8", errors="replace", timeout=_LIMIT_S, check=False
        )
    except FileNotFoundError as error:
        raise UserError(f"--runner slurm: there is no {command[0]} here; run it on a login node of SLURM's") from error
    except subprocess.TimeoutExpired as error:
        raise SlurmError(f"{command[0]} did not end in {_LIMIT_S:g} s") from error
    if done.returncode:
        said = done.stderr or done.stdout or f"exit code {done.returncode}"
        raise SlurmError(in_one_line(RuntimeError(said.replace(f"{command[0]}: error: ", ""))))
    return done.stdout


def read_site(queue: str | None) -> Site:
    """Return what jobs may use in a partition, or several separated by commas: the default one if none is given."""
    queue = os.environ.get("SBATCH_PARTITION", queue)
    rows = [line.split("|") for line in called("sinfo", "-h", "-N", "-o", "%P|%l|%o|%c|%a|%T").splitlines()]
    named = queue.split(",") if queue else []
    chosen = [row for row in rows if row[0].rstrip("*") in named or (not named and row[0].endswith("*"))]
    if not chosen:
        known = ", ".join(dict.fromkeys(row[0].rstrip("*") for row in rows))
        raise UserError(
            f"SLURM has no partition {queue!r}; there are {known}"
            if queue
            else f"SLURM has no default partition; set SBATCH_PARTITION to one of {known}"
        )
    nodes = {row[2]: int(row[3]) for row in chosen}
    up = dict.fromkeys(f"partition {row[0].rstrip('*')} is {row[4]}" for row in chosen)
    states = ", ".join([*up, *dict.fromkeys(f"{row[2]} is {row[5]}" for row in chosen)])
    most_s = max((seconds_of(row[1]) for row in chosen), default=math.inf)
    return Site(sum(nodes.values()), most_s, tuple(nodes), states)


def jobs_named(name: str) -> dict[str, JobState]:
    """Return the state of this user's jobs of a name, by id; of those that ended in the last minutes too."""
    listed = called("squeue", "-h", "--me", "-t", "all", "-n", name, "-o", "%i|%T|%r").splitlines()
    rows = [line.split("|", 2) for line in listed]
    return {number: JobState(state, reason) for number, state, reason in rows}


def cancel(name: str, numbers: Sequence[str] = (), states: Sequence[str] = ()) -> None:
    """End this user's jobs of a name, or those of these ids; only those in one of these states, if any are given."""
    which = numbers or (f"--name={name}", f"--user={getpass.getuser()}")
    called("scancel", *(f"--state={state}" for state in states), *which)


def test(script: Path) -> None:
    """Raise SlurmError if no node could ever run a job of this script."""
    called("sbatch", "--test-only", str(script))
