"""Run one stage's commands: warm where they are Python modules of the repository, else as a shell does."""

import json
import os
import re
import selectors
import shlex
import shutil
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dvc.stage import Stage

# What a shell would hand on as it stands.
_PLAIN_WORD = re.compile(r"[A-Za-z0-9_@%+=:,./-]+")
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")


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
    clear: tuple[str, ...]
    threads: int
    retries: int
    # Addresses of the hosts that fork the processes.
    shell_host: str
    warm_host: str


@dataclass(frozen=True)
class Outcome:
    """How a stage's commands ended; `exit_code` is negative for a signal, None if they were stopped by the run."""

    name: str
    exit_code: int | None
    seconds: float
    peak_rss_bytes: int
    tail: tuple[str, ...]


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


def resources(stage: "Stage") -> tuple[int, int]:
    """Return how many threads the stage's `meta` asks for (1 unless said), and how many retries (0 unless said)."""
    from merganser.errors import InputError

    meta = stage.meta if isinstance(stage.meta, dict) else {}
    wanted = meta.get("resources")
    threads = wanted.get("threads", 1) if isinstance(wanted, dict) else 1
    retries = meta.get("retries", 0)
    for name, value, least in (("resources.threads", threads, 1), ("retries", retries, 0)):
        if type(value) is not int or value < least:
            raise InputError(
                f"stage {stage.addressing}: meta.{name} should be a whole number from {least}, got {value!r}"
            )
    return threads, retries


def stage_environment(stage: "Stage", threads: int) -> dict[str, str]:
    """Return the variables to set for a stage's processes, on top of those of the run."""
    counts = {name: os.environ.get(name, str(threads)) for name in _THREAD_VARIABLES}
    return {"DVC_ROOT": stage.repo.root_dir, "DVC_STAGE": stage.addressing, "PYTHONUNBUFFERED": "1"} | counts


def run_job(job: Job, tell: Callable[[str], None]) -> Outcome:
    """Run a job's commands one after another up to the first that fails; `tell` gets each line they print."""
    for path in map(Path, job.clear):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    seconds, peak, tail = 0.0, 0, _Tail(tell)
    for command in job.commands:
        tell(f"> {command.line}")
        answer = _ask_host(job.warm_host if command.module else job.shell_host, job, command, tail)
        if answer is None:
            return Outcome(job.name, None, seconds, peak, tail.lines())
        seconds, peak = seconds + answer["seconds"], max(peak, answer["peak_rss_bytes"])
        if answer["exit_code"]:
            return Outcome(job.name, answer["exit_code"], seconds, peak, tail.lines())
    return Outcome(job.name, 0, seconds, peak, tail.lines())


class _Tail:
    """Cut a byte stream into lines, hand them on, and keep the last ones."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell, self._rest, self._kept = tell, b"", list[str]()

    def feed(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._keep(line)

    def lines(self) -> tuple[str, ...]:
        if self._rest:
            self._keep(self._rest)
            self._rest = b""
        return tuple(self._kept)

    def _keep(self, line: bytes) -> None:
        # A progress bar rewrites its line: only what it last showed counts.
        text = line.decode(errors="replace").rstrip("\r").rsplit("\r", 1)[-1]
        self._tell(text)
        self._kept = [*self._kept, text][-30:]


def _ask_host(address: str, job: Job, command: Command, tail: _Tail) -> dict | None:
    """Have a host run one command; None if the host went away before the command ended."""
    request = {
        "argv": command.argv,
        "module": command.module,
        "folder": job.folder,
        "environment": job.environment,
    }
    reading, writing = os.pipe()
    with socket.socket(socket.AF_UNIX) as connection, open(reading, "rb", buffering=0) as output:
        try:
            connection.connect(address)
            message = json.dumps(request).encode() + b"\n"
            socket.send_fds(connection, [message[:1]], [writing])
            connection.sendall(message[1:])
        except OSError:
            return None
        finally:
            os.close(writing)
        return _follow(connection, output.fileno(), tail)


def _follow(connection: socket.socket, output: int, tail: _Tail) -> dict | None:
    """Read output until the host says how the command ended; what a left-over child prints later is not waited for."""
    os.set_blocking(output, False)
    answer = b""
    with selectors.DefaultSelector() as selector:
        selector.register(connection, selectors.EVENT_READ)
        selector.register(output, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj == output:
                    if not _drain(output, tail):
                        selector.unregister(output)
                    continue
                data = connection.recv(65536)
                answer += data
                if not data or answer.endswith(b"\n"):
                    _drain(output, tail)
                    return json.loads(answer) if answer.endswith(b"\n") else None


def _drain(output: int, tail: _Tail) -> bool:
    """Read what is there; False at the end of the stream."""
    while True:
        try:
            data = os.read(output, 65536)
        except BlockingIOError:
            return True
        if not data:
            return False
        tail.feed(data)
