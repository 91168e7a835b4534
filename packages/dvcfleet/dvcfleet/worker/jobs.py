"""Run one stage's commands: warm if they are Python modules of the repository, else in a shell.

A warm command is a fork of a process that has imported third-party modules; it imports the repository's modules itself,
unless another command of its module has been run before: see `module_server`.
"""

import math
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from dvcfleet.dvc_adapter.protocols import Stage
from dvcfleet.dvc_adapter.stages import command_environment, shell_command
from dvcfleet.messages import OUT_OF_MEMORY, Command, Job, Outcome, Usage
from dvcfleet.planning.resources import THREAD_VARIABLES, Resources, thread_variables
from dvcfleet.project import project_of
from dvcfleet.worker.fork_client import is_own_python, keep_reading, own_fork_servers, run_command
from dvcfleet.worker.gpus import GPUS_VARIABLE, own_gpus
from dvcfleet.worker.output import Lines, log_path, logging_to

# Words that a shell passes on unchanged.
_PLAIN = re.compile(r"[A-Za-z0-9_@%+=:,./ \t-]+")
# The exit code of the shell's `timeout`.
TIMED_OUT = 124
_AT_WORK: set[str] = set()  # the keys of Dask tasks


@contextmanager
def as_task() -> Iterator[Callable[[], bool] | None]:
    """Yield a function that tells whether this thread's Dask task is still wanted; None outside a Dask task."""
    if "distributed" not in sys.modules:
        yield None
        return
    from distributed import get_worker

    try:
        worker = get_worker()
        key, tasks = str(worker.get_current_task()), worker.state.tasks
    except ValueError:
        yield None
        return
    _AT_WORK.add(key)
    try:
        yield lambda: key in tasks and tasks[key].state == "executing"
    finally:
        _AT_WORK.discard(key)


def keys_at_work() -> set[str]:
    """Return the keys of the Dask tasks whose commands run below this worker."""
    return set(_AT_WORK)


def make_job(stage: Stage, resources: Resources) -> Job:
    """Return the job for the stage's commands, in the stage's repository."""
    return Job(
        name=stage.addressing,
        commands=commands_of(stage),
        folder=stage.wdir,
        root=stage.repo.root_dir,
        limits=thread_variables(resources.threads) if resources.limits_threads else {},
        clear=tuple(out.fs_path for out in stage.outs if not out.persist and out.protocol == "local"),
        resources=resources,
    )


def commands_of(stage: Stage) -> tuple[Command, ...]:
    """Return the stage's commands as DVC would run them, with those marked that can run warm."""
    folder, commands = Path(stage.wdir), []
    packages = project_of(Path(stage.repo.root_dir)).packages
    is_inside = folder.is_relative_to(stage.repo.root_dir)
    shell = os.environ.get("SHELL") or "/bin/sh"
    for line in stage.cmd if isinstance(stage.cmd, list) else stage.cmd.splitlines():
        module, arguments = (warm_command(line, folder, packages) if is_inside else None) or (None, ())
        commands.append(Command(line, tuple(shell_command(shell, line)), module, arguments))
    return tuple(commands)


def warm_command(line: str, folder: Path, packages: Collection[str] = ()) -> tuple[str, tuple[str, ...]] | None:
    """Return the module and the arguments of `python -m MODULE ARGUMENT ...`; None for any other command.

    Only if all words mean the same without a shell, and the module, or the package that runs as one, is in the folder
    where the stage works, or in one of the project's own `packages`, wherever these are installed.
    """
    words = line.split()
    if words[:2] != ["python", "-m"] or len(words) < 3 or not _PLAIN.fullmatch(line):
        return None
    path = folder.joinpath(*words[2].split("."))
    is_there = path.with_name(f"{path.name}.py").is_file() or (path / "__main__.py").is_file()
    return (words[2], tuple(words[3:])) if is_there or _is_of(words[2], packages) else None


def _is_of(module: str, packages: Collection[str]) -> bool:
    return module.partition(".")[0] in packages


def run_job(job: Job, on_text: Callable[[str], None]) -> Outcome:
    """Run a job's commands in order until one fails; `on_text` is called with blocks of lines of their output."""
    for path in map(Path, job.clear):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    project = project_of(Path(job.root)).variables(job.run)
    with logging_to(log_path(Path(job.root), job.name), on_text) as write:
        if job.fork_servers is not None:
            environment = stage_environment(job, project, job.gpus)
            return _run_commands(job, environment, _fitting(environment, project, job.fork_servers), write)
        with as_task() as is_wanted, own_gpus(job.name, job.resources.gpus) as gpus:
            environment = stage_environment(job, project, gpus)
            servers = _fitting(environment, project, own_fork_servers(job.root))
            return _run_commands(job, environment, servers, write, is_wanted)


def stage_environment(job: Job, project: Mapping[str, str], gpus: Sequence[str] | None) -> dict[str, str]:
    """Return the variables that a job's commands get besides those of the process that starts them.

    That process's are the user's (`command_environment`). These win over them, and of these the later: what the
    `project` says; what DVC says; the limits of numerical libraries, if the stage asks for a number of threads; the
    `gpus` that the stage was given, if anybody counts them.
    """
    dvc = {"DVC_ROOT": os.environ.get("DVC_ROOT", job.root), "DVC_STAGE": job.name}
    named = {} if gpus is None else {GPUS_VARIABLE: ",".join(gpus)}
    return {**project, **dvc, **job.limits, **named}


def _fitting(
    environment: Mapping[str, str], project: Mapping[str, str], servers: tuple[str, str | None]
) -> tuple[str, str | None]:
    """Return the fork servers that can run commands in an environment: without a warm one whose libraries do not fit.

    They keep the number of threads that they were loaded with, and they are those of this process's interpreter.
    """
    cold, warm = servers
    here = command_environment()
    environment, loaded = here | dict(environment), here | dict(project)
    is_same = all(environment.get(name) == loaded.get(name) for name in THREAD_VARIABLES)
    return cold, warm if is_same and is_own_python(environment.get("PATH", os.defpath)) else None


def _run_commands(
    job: Job,
    environment: Mapping[str, str],
    fork_servers: tuple[str, str | None],
    on_text: Callable[[str], None],
    is_wanted: Callable[[], bool] | None = None,
) -> Outcome:
    """Have the fork servers run a job's commands; `is_wanted` is polled if the run cannot end them itself."""
    end = time.monotonic() + (job.resources.timeout_s or math.inf)
    is_limited = job.resources.timeout_s is not None or is_wanted is not None
    seconds, peak, used, lines = 0.0, 0, Usage(), Lines(on_text)
    cold, warm = fork_servers
    packages = project_of(Path(job.root)).packages
    on_left = partial(keep_reading, log_path(Path(job.root), job.name))

    def is_over() -> bool:
        return time.monotonic() > end or not (is_wanted is None or is_wanted())

    def outcome(code: int | None, why: str = "", lost: bool = False) -> Outcome:
        return Outcome(job.name, code, seconds, peak, used, lines.last(), lost=lost, why=why)

    for command in job.commands:
        lines.say(f"> {command.line}")
        server = warm if command.module and warm else cold
        module = command.module if server == warm else None
        request = {
            "argv": command.argv,
            "module": module,
            "imports_once": module is not None and _is_of(module, packages),
            "arguments": command.arguments,
            "folder": job.folder,
            "environment": environment,
        }
        answer = run_command(server, request, lines, is_over if is_limited else None, on_left)
        if answer is None:
            return outcome(None, f"the process that started its command died, {OUT_OF_MEMORY}", lost=True)
        seconds, peak = seconds + answer["seconds"], max(peak, answer["peak_rss_bytes"])
        used = Usage(
            cpu_s=used.cpu_s + answer["cpu_s"],
            gpu_s=seconds * len(job.gpus or ()),
            read_bytes=used.read_bytes + answer["read_bytes"],
            written_bytes=used.written_bytes + answer["written_bytes"],
        )
        if answer["ended"] and time.monotonic() > end:
            return outcome(TIMED_OUT, f"took longer than the {job.resources.timeout_s:g} s of its timeout")
        if answer["ended"]:
            return outcome(None, "cancelled")
        if answer["exit_code"]:
            return outcome(answer["exit_code"])
    return outcome(0)
