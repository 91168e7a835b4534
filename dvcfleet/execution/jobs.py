"""Run one stage's commands: warm where they are Python modules of the repository, else as a shell does."""

import math
import os
import re
import shlex
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dvcfleet.execution.fork_client import Tail, ask_fork_server, own_fork_servers
from dvcfleet.executors.dask_tasks import as_task
from dvcfleet.messages import Command, Job, Outcome
from dvcfleet.planning.resources import Resources
from dvcfleet.scheduling.resource_pool import own_gpus
from dvcfleet.secrets import masked

if TYPE_CHECKING:
    from dvc.stage import Stage

# What a shell would hand on as it stands.
_PLAIN_WORD = re.compile(r"[A-Za-z0-9_@%+=:,./-]+")
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")
# As `timeout` of the shell ends.
TIMED_OUT = 124


def make_job(stage: "Stage", resources: Resources) -> Job:
    """Return what a worker needs to run the stage's commands in the repository that the stage is of."""
    return Job(
        name=stage.addressing,
        commands=commands_of(stage),
        folder=stage.wdir,
        environment=stage_environment(stage, resources.threads),
        clear=tuple(out.fs_path for out in stage.outs if not out.persist and out.protocol == "local"),
        resources=resources,
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
    for path in map(Path, job.clear):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    if job.hosts is not None:
        return _run_commands(job, job.hosts, tell)
    with as_task() as is_wanted, own_gpus(job.name, job.resources.gpus) as gpus:
        job = replace(job, environment=job.environment | gpus)
        return _run_commands(job, own_fork_servers(job.environment["DVC_ROOT"], job.preload), tell, is_wanted)


def _run_commands(
    job: Job, hosts: tuple[str, str], tell: Callable[[str], None], is_wanted: Callable[[], bool] | None = None
) -> Outcome:
    """Have the hosts run a job's commands; `is_wanted` is asked again and again, where the run cannot end them."""
    end = time.monotonic() + (job.resources.timeout_s or math.inf)
    is_limited = job.resources.timeout_s is not None or is_wanted is not None
    seconds, peak, tail = 0.0, 0, Tail(tell)

    def is_over() -> bool:
        return time.monotonic() > end or not (is_wanted is None or is_wanted())

    def outcome(code: int | None, why: str = "", lost: bool = False) -> Outcome:
        return Outcome(job.name, code, seconds, peak, tail.lines(), lost=lost, why=why)

    for command in job.commands:
        tell(masked(f"> {command.line}"))
        address = hosts[1] if command.module else hosts[0]
        answer = ask_fork_server(address, _request(job, command), tail, is_over if is_limited else None)
        if answer is None:
            return outcome(None, "the process that started its command went away", lost=True)
        seconds, peak = seconds + answer["seconds"], max(peak, answer["peak_rss_bytes"])
        if answer["ended"] and time.monotonic() > end:
            return outcome(TIMED_OUT, f"took longer than the {job.resources.timeout_s:g} s of its timeout")
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
