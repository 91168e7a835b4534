"""The ledger: one line per stage that a run executed, restored or saw fail, with the time, the host and the commit.

dvc.lock says which outputs came from which inputs; the ledger says when and where. It is append-only.
"""

import getpass
import hashlib
import json
import os
import platform
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from dvcfleet.disk import append_lines, write_durably
from dvcfleet.git import git_if_any
from dvcfleet.messages import Ending, Start

LEDGER = "ledger.jsonl"
ENVIRONMENTS = "environments"
BEGIN = hashlib.sha256(b"the begin of a ledger").hexdigest()  # what its first line names as the one before


@dataclass(frozen=True)
class Execution:
    """One execution of a stage's commands, restoration of its outputs or change of names alone: a line of the ledger.

    `entry` is the digest of the resulting dvc.lock entry, `environment` that of a file in `environments/`, `began` a
    time in UTC (ISO 8601), `dirty` whether files that git tracks differed from the commit. `varies`: the outputs that
    dvc.yaml said to differ from run to run; `before`: the sha256 of the line before, see
    `dvcfleet.record.chain`. These and `user` are None in lines of older versions. `was`: of a change of names, the
    `stage` that it was before, and the digest of the `entry` that this had.
    """

    stage: str
    result: str
    entry: str | None
    began: str
    seconds: float
    peak_rss_bytes: int
    host: str
    run: str
    flow_run: str | None
    commit: str | None
    dirty: bool | None
    environment: str
    varies: dict[str, Any] | None = None
    user: str | None = None
    before: str | None = None
    was: dict[str, str] | None = None

    @property
    def ended(self) -> datetime:
        """When it ended."""
        return datetime.fromisoformat(self.began) + timedelta(seconds=self.seconds)


def begin(elsewhere: bool = False) -> Start:
    """Return the present time and host as a stage's start; `elsewhere`: on a worker of a cluster."""
    return Start(time.time(), socket.gethostname(), environment() if elsewhere else None)


class Ledger:
    """The ledger of a run; `flow_run` returns the id of Prefect's flow run once there is one.

    If the disk is full, a line is kept in memory and written with the next one.
    """

    def __init__(self, folder: Path, run: str, flow_run: Callable[[], str | None]) -> None:
        self._folder = folder
        self._run = run
        self._flow_run = flow_run
        self._unwritten = b""
        self._user = _user()
        self._commit = commit_of(folder.parent)  # before a stage has written anything

    def note(
        self,
        ending: Ending,
        entry: Mapping[str, Any] | None,
        varies: Mapping[str, Any],
        was: tuple[str, Mapping[str, Any]] | None = None,
    ) -> None:
        """Append how a stage ended, and its entry of dvc.lock; if no command ran, it started now on this machine.

        `was`: what it was called before, and its entry then.
        """
        start = ending.outcome.start or begin()
        commit, dirty = self._commit
        execution = Execution(
            stage=ending.name,
            result=ending.result.value,
            entry=entry_digest(entry) if entry else None,
            began=datetime.fromtimestamp(start.began, UTC).isoformat(timespec="milliseconds"),
            seconds=round(ending.outcome.seconds, 3),
            peak_rss_bytes=ending.outcome.peak_rss_bytes,
            host=start.host,
            run=self._run,
            flow_run=self._flow_run(),
            commit=commit,
            dirty=dirty,
            environment=keep_environment(self._folder, start.environment) if start.environment else self._environment,
            varies=dict(varies),
            user=self._user,
            before=self._last,
            was=was and {"stage": was[0], "entry": entry_digest(was[1])},
        )
        line = json.dumps(asdict(execution)).encode()
        self._last = digest_of(line)
        self._unwritten += line + b"\n"
        try:
            append_lines(self._folder / LEDGER, self._unwritten)
        except OSError:
            return
        self._unwritten = b""

    @cached_property
    def _last(self) -> str:
        """The sha256 of the last line."""
        lines = [line for line, _ in sound_lines(self._folder / LEDGER)]
        return digest_of(lines[-1]) if lines else BEGIN

    @cached_property
    def _environment(self) -> str:
        return keep_environment(self._folder, environment())


def _user() -> str | None:
    """Return the name of the user; None where the system knows none."""
    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):
        return None


def executions(folder: Path) -> Iterator[Execution]:
    """Read a ledger's lines, oldest first; truncated and damaged lines are skipped."""
    return (execution for _, execution in sound_lines(folder / LEDGER))


def sound_lines(path: Path) -> Iterator[tuple[bytes, Execution]]:
    """Read the lines of a ledger's file that are whole, with what they say, oldest first."""
    for line in path.read_bytes().splitlines() if path.exists() else ():
        with suppress(ValueError, TypeError, RecursionError):
            execution = Execution(**json.loads(line))
            if _is_sound(execution):
                yield line, execution


def digest_of(line: bytes) -> str:
    """Return the digest by which the next line names a line."""
    return hashlib.sha256(line).hexdigest()


def _is_sound(execution: Execution) -> bool:
    """Tell whether a line's values are of the right kinds; raise ValueError or TypeError if `began` is not a time."""
    words = (execution.stage, execution.result, execution.host, execution.run, execution.environment)
    is_known = execution.entry is None or isinstance(execution.entry, str)
    began, was = datetime.fromisoformat(execution.began), execution.was
    is_known &= was is None or (isinstance(was, dict) and all(isinstance(was.get(k), str) for k in ("stage", "entry")))
    return all(isinstance(each, str) for each in words) and is_known and bool(began.tzinfo) and execution.seconds >= 0


def entry_digest(entry: Mapping[str, Any]) -> str:
    """Return a digest of an entry of dvc.lock, the same for a new entry and one read from the file."""
    return hashlib.sha256(json.dumps(_ordered(entry), default=str).encode()).hexdigest()


def _ordered(value: Any) -> Any:
    if isinstance(value, Mapping):
        return sorted(([str(key), _ordered(item)] for key, item in value.items()), key=lambda pair: pair[0])
    return [_ordered(item) for item in value] if isinstance(value, list | tuple) else value


def commit_of(root: Path) -> tuple[str | None, bool | None]:
    """Return git's current commit, and whether tracked files differ from it; None if there is no commit.

    dvc.lock does not count, since a run changes it.
    """
    head = git_if_any(root, "rev-parse", "HEAD")
    if head is None:
        return None, None
    return head.strip(), git_if_any(root, "diff", "--quiet", "HEAD", "--", ".", ":(exclude,glob)**/dvc.lock") is None


@cache
def environment() -> dict[str, Any]:
    """Describe the environment of commands: Python, every installed package's version, the machine."""
    packages: dict[str, str] = {}
    for folder in sys.path:
        # By their folders' names: reading the metadata would take half a second.
        for info in sorted(Path(folder).glob("*.dist-info")):
            name, _, version = info.stem.rpartition("-")
            packages.setdefault(name, version)
    return {
        "python": platform.python_version(),
        "packages": dict(sorted(packages.items())),
        "platform": platform.platform(),
        "machine": platform.machine(),
        "processor": _first_after(Path("/proc/cpuinfo"), "model name"),
        "processors": os.cpu_count(),
        "gpus": [
            _first_after(file, "Model") for file in sorted(Path("/proc/driver/nvidia/gpus").glob("*/information"))
        ],
    }


def _first_after(path: Path, key: str) -> str | None:
    """Return the value of the first line `key : value`."""
    lines = path.read_text().splitlines() if path.exists() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(key)), None)


def keep_environment(folder: Path, described: Mapping[str, Any]) -> str:
    """Write an environment's description under its digest, unless the disk is full; return the digest."""
    text = json.dumps(described, indent=2, sort_keys=True) + "\n"
    digest = hashlib.sha256(text.encode()).hexdigest()
    path = environment_file(folder, digest)
    if not _is_whole(path, digest):
        with suppress(OSError):
            path.parent.mkdir(exist_ok=True)
            write_durably(path, text)
    return digest


def read_environment(folder: Path, digest: str) -> dict[str, Any] | None:
    """Return the description of an environment; None if it is lost.

    A file that is damaged is written anew if it described the environment of this process.
    """
    path = environment_file(folder, digest)
    if not _is_whole(path, digest) and (not path.exists() or keep_environment(folder, environment()) != digest):
        return None
    found: dict[str, Any] | None = json.loads(path.read_text()) if _is_whole(path, digest) else None
    return found


def environment_file(folder: Path, digest: str) -> Path:
    """Return the path of an environment's description."""
    return folder / ENVIRONMENTS / f"{digest}.json"


def damaged_environments(folder: Path) -> list[Path]:
    """List the descriptions of environments whose bytes are not what their names say."""
    files = sorted((folder / ENVIRONMENTS).glob("*.json"))
    return [path for path in files if not _is_whole(path, path.stem)]


def _is_whole(path: Path, digest: str) -> bool:
    """Tell whether a file is there, with the bytes that its name is the digest of."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest() == digest
    except OSError:
        return False
