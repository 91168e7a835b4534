"""Run one stage's commands: warm where they are Python modules of the repository, else as a shell does."""

import math
import os
import re
import shlex
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flows.hosts import Tail, ask_host, own_hosts
from flows.ledger import Start
from flows.needs import Needs
from flows.room import own_gpus
from flows.wanted import as_task
from merganser.secrets import masked

if TYPE_CHECKING:
    from dvc.stage import Stage

# What a shell would hand on as it stands.
_PLAIN_WORD = re.compile(r"[A-Za-z0-9_@%+=:,./-]+")
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")
# As `timeout` of the shell ends.
TIMED_OUT = 124


@dataclass(frozen=True)
class Command:
    """One command line; `module` and `arguments` are set where a warm host can run it."""

    line: str
    argv: tuple[str, ...]
    module: str | None = None


@dataclass(frozen=True)
class Job:
    """What a worker needs to run a stage: nothing of DVC's."""

    name: str
    commands: tuple[Command, ...]
    folder: str
    environment: dict[str, str]
    # Outputs to be cleared before the commands run, so that a second attempt does not find the first one's.
    clear: tuple[str, ...] = ()
    needs: Needs = field(default_factory=Needs)
    # Where the hosts listen that fork the processes, of shells and warm ones; None: the worker has hosts of its own.
    hosts: tuple[str, str] | None = None
    # What a node with a clone of its own needs besides (`flows.node.NodeWork`).
    node: Any = None
    # Whether it is for the run's own machine, wherever the others go.
    stays: bool = False


@dataclass(frozen=True)
class Outcome:
    """How a stage's commands ended; `exit_code` is negative for a signal, None if they did not come to an end.

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


def make_job(stage: "Stage", needs: Needs) -> Job:
    """Return what a worker needs to run the stage's commands in the repository that the stage is of."""
    return Job(
        name=stage.addressing,
        commands=commands_of(stage),
        folder=stage.wdir,
        environment=stage_environment(stage, needs.threads),
        clear=tuple(out.fs_path for out in stage.outs if not out.persist and out.protocol == "local"),
        needs=needs,
    )


def commands_of(stage: "Stage") -> tuple[Command, ...]:
    """Return the stage's commands as DVC would run them, and those that can run warm marked."""
    from dvc.stage.run import _enforce_cmd_list, _make_cmd, get_executable

    shell = get_executable()
    commands = []
    for line in _enforce_cmd_list(stage.cmd):
        warm = warm_command(line, Path(stage.repo.root_dir)) if stage.wdir == stage.repo.root_dir else None
        commands.append(warm or Command(line, tuple(_make_cmd(shell, line))))
    return tuple(commands)


def warm_command(line: str, root: Path) -> Command | None:
    """Return `python -m PACKAGE.MODULE ARGUMENT ...` as a warm command; None for any other command.

    Only for words that mean the same without a shell, and a module in the repository's root folder.
    """
    words = line.split()
    if words[:2] != ["python", "-m"] or len(words) < 3 or not all(map(_PLAIN_WORD.fullmatch, words)):
        return None
    if words != shlex.split(line, comments=True):
        return None
    module = words[2]
    # A host has a package of this name already: ours.
    if "." not in module or module.startswith("flows.") or not (root / f"{module.replace('.', '/')}.py").is_file():
        return None
    return Command(line, tuple(words[3:]), module)


def stage_environment(stage: "Stage", threads: int) -> dict[str, str]:
    """Return the variables to set for a stage's processes, on top of those of the worker."""
    counts = {name: os.environ.get(name, str(threads)) for name in _THREAD_VARIABLES}
    return {"DVC_ROOT": stage.repo.root_dir, "DVC_STAGE": stage.addressing, "PYTHONUNBUFFERED": "1"} | counts


def run_job(job: Job, tell: Callable[[str], None]) -> Outcome:
    """Run a job's commands one after another up to the first that fails; `tell` gets each line they print."""
    if job.node is not None:
        from flows.node import run_on_node

        return run_on_node(job, tell)
    for path in map(Path, job.clear):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    if job.hosts is not None:
        return _run_commands(job, job.hosts, tell)
    with as_task() as is_wanted, own_gpus(job.name, job.needs.gpus) as gpus:
        job = replace(job, environment=job.environment | gpus)
        return _run_commands(job, own_hosts(job.environment["DVC_ROOT"]), tell, is_wanted)


def _run_commands(
    job: Job, hosts: tuple[str, str], tell: Callable[[str], None], is_wanted: Callable[[], bool] | None = None
) -> Outcome:
    """Have the hosts run a job's commands; `is_wanted` is asked again and again, where the run cannot end them."""
    end = time.monotonic() + (job.needs.timeout_s or math.inf)
    is_limited = job.needs.timeout_s is not None or is_wanted is not None
    seconds, peak, tail = 0.0, 0, Tail(tell)

    def is_over() -> bool:
        return time.monotonic() > end or not (is_wanted is None or is_wanted())

    def outcome(code: int | None, why: str = "", lost: bool = False) -> Outcome:
        return Outcome(job.name, code, seconds, peak, tail.lines(), lost=lost, why=why)

    for command in job.commands:
        tell(masked(f"> {command.line}"))
        address = hosts[1] if command.module else hosts[0]
        answer = ask_host(address, _request(job, command), tail, is_over if is_limited else None)
        if answer is None:
            return outcome(None, "the process that started its command went away", lost=True)
        seconds, peak = seconds + answer["seconds"], max(peak, answer["peak_rss_bytes"])
        if answer["ended"] and time.monotonic() > end:
            return outcome(TIMED_OUT, f"took longer than the {job.needs.timeout_s:g} s of its timeout")
        if answer["ended"]:
            return outcome(None, "nobody waits for it any more")
        if answer["exit_code"]:
            return outcome(answer["exit_code"])
    return outcome(0)


def _request(job: Job, command: Command) -> dict[str, Any]:
    return {
        "argv": command.argv,
        "module": command.module,
        "folder": job.folder,
        "environment": job.environment,
    }
