"""SLURM's own commands: what its nodes are, what has become of jobs, and how they are ended; and jobs' time limits.

A job is asked for as long as its stages took before, with room to spare.
"""

import getpass
import math
import os
import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dvcfleet.errors import UserError, in_one_line

LEAST_S = 3600.0
_TIMES, _SPARE_S = 3, 300.0
_FORM = re.compile(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?")
_NO_LIMIT = ("infinite", "UNLIMITED", "INFINITE")


def needed_s(timeout_s: float | None, took_s: float | None, overran_s: float) -> float | None:
    """Return how many seconds a stage may need; None if nothing is known of it.

    `timeout_s`: after which it is ended anyway; `took_s`: what it took before; `overran_s`: what a job had that ended
    at its limit while the stage ran, else 0.

    >>> needed_s(None, 1000.0, 0.0), needed_s(600.0, 1000.0, 0.0), needed_s(None, None, 3600.0)
    (3300.0, 900.0, 7200.0)
    """
    if timeout_s is not None:
        return timeout_s + _SPARE_S
    least = 2 * overran_s
    if took_s is None:
        return least or None
    return max(least, _TIMES * took_s + _SPARE_S)


def walltime_s(need_s: float | None, unknown_s: float, most_s: float) -> float:
    """Return for how many seconds to ask for a job: an hour, doubled until it is enough, and at most `most_s`.

    `unknown_s`: for a stage of which nothing is known.

    >>> walltime_s(900.0, 1800.0, math.inf), walltime_s(9000.0, 1800.0, math.inf), walltime_s(None, 1800.0, math.inf)
    (3600.0, 14400.0, 1800.0)
    """
    wanted = unknown_s if need_s is None else LEAST_S * 2 ** max(0, math.ceil(math.log2(need_s / LEAST_S)))
    return min(wanted, most_s)


def seconds_of(text: str) -> float:
    """Return the seconds of a time as SLURM writes it; raise ValueError for any other text.

    >>> seconds_of("1-02:00:00"), seconds_of("30:00"), seconds_of("90"), seconds_of("2-12"), seconds_of("infinite")
    (93600.0, 1800.0, 5400.0, 216000.0, inf)
    """
    if text in _NO_LIMIT:
        return math.inf
    # Without quotes, YAML reads 12:00:00 as a number.
    if not (match := isinstance(text, str) and _FORM.fullmatch(text)):
        raise ValueError(f"{text!r} is no time of SLURM's, such as '1-12:00:00' in quotes")
    days, *rest = match.groups()
    given = [int(each) for each in rest if each]
    if days:
        hours, minutes, seconds = [*given, 0, 0][:3]
    elif len(given) == 3:
        hours, minutes, seconds = given
    else:
        hours, (minutes, seconds) = 0, [*given, 0][:2]
    return float(int(days or 0) * 86400 + hours * 3600 + minutes * 60 + seconds)


def in_slurms_form(seconds: float) -> str:
    """Write a time as SLURM reads it, in whole minutes.

    >>> in_slurms_form(3600.0), in_slurms_form(93601.0)
    ('0-01:00:00', '1-02:01:00')
    """
    minutes = math.ceil(seconds / 60)
    return f"{minutes // 1440}-{minutes // 60 % 24:02}:{minutes % 60:02}:00"


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
