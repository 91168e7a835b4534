"""The ledger: one line per execution, restoration or failure of a stage, with the time, the host and the commit.

dvc.lock has the outputs of given inputs; the ledger has when and where they were made. It is append-only.
"""

import getpass
import gzip
import hashlib
import json
import socket
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

from dvcfleet import crash_recovery
from dvcfleet.disk import append_lines, lines_from_end, write_durably
from dvcfleet.dvc_adapter.lock_entries import read_again
from dvcfleet.messages import Ending, Result, Start
from dvcfleet.record.environments import current_commit, environment, keep_changes, keep_environment, sha256

LEDGER = crash_recovery.LEDGER
LEDGERS = "ledgers"  # of other machines, and of experiments that were applied: files of lines, each with its chain
OLDER = f"{LEDGERS}/older.jsonl.gz"  # the ledger's lines that `move_older` took out of it, as they were
_MOST = 1e18  # seconds or bytes: more, or NaN, are no measurements
BEGIN = sha256(b"the begin of a ledger")  # what its first line names as the one before


@dataclass(frozen=True)
class Execution:
    """One execution of a stage's commands, restoration of its outputs or change of names alone: a line of the ledger.

    `entry` is the digest of the resulting dvc.lock entry, `environment` that of a file in `environments/`, `began` a
    time in UTC (ISO 8601), `dirty` whether files that git tracks differed from the commit, `changes` the digest of a
    patch in `changes/` of what differed when the run began, untracked code included. `varies`: the outputs that
    dvc.yaml said to differ from run to run; `before`: the sha256 of the line before, see
    `dvcfleet.record.chain`. `identity`: which repository's run it is, see `dvcfleet.project.Project.identity`.
    `cpu_s` to `written_bytes`: see `dvcfleet.messages.Usage`. All of these and `user` are None in lines of older
    versions. `was`: of a change of names, the `stage` that it was before, and the digest of the `entry` that this had.
    `why`: why a stage failed, in words. `unproven`: of a restoration from the run cache, whether no ledger told that
    commands had made this entry. `ledger` is not in the line: the file of another machine's ledger that has it, None
    for the repository's own.
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
    changes: str | None = None
    before: str | None = None
    was: dict[str, str] | None = None
    why: str | None = None
    unproven: bool | None = None
    identity: str | None = None
    cpu_s: float | None = None
    gpu_s: float | None = None
    read_bytes: int | None = None
    written_bytes: int | None = None
    ledger: str | None = None

    @property
    def line(self) -> bytes:
        """The line that says it."""
        return json.dumps({name: value for name, value in asdict(self).items() if name != "ledger"}).encode()

    @property
    def ended(self) -> datetime:
        """When it ended."""
        return datetime.fromisoformat(self.began) + timedelta(seconds=self.seconds)


def begin(elsewhere: bool = False) -> Start:
    """Return the present time and host as a stage's start; `elsewhere`: on a worker of a cluster."""
    return Start(time.time(), socket.gethostname(), environment() if elsewhere else None)


class Ledger:
    """The ledger of a run; `flow_run` returns the id of Prefect's flow run once there is one.

    If the disk is full, a line is kept in memory and written with the next one. `unproven`: the stages that were
    restored from the run cache though no ledger tells that commands had made their entries.
    """

    def __init__(self, folder: Path, run: str, flow_run: Callable[[], str | None], identity: str = "") -> None:
        self._folder = folder
        self._identity = identity or None
        self._run = run
        self._flow_run = flow_run
        self._unwritten = b""
        self._user = _user()
        self.unproven: list[str] = []
        self._commit, self._dirty = current_commit(folder.parent)  # before a stage has written anything
        self._changes = keep_changes(folder, bool(self._dirty)) if self._commit else None

    def note(
        self,
        ending: Ending,
        entry: Mapping[str, Any] | None,
        varies: Mapping[str, Any],
        was: tuple[str, Mapping[str, Any]] | None = None,
        cached: bool = False,
    ) -> Execution:
        """Append how a stage ended, and its entry of dvc.lock; if no command ran, it started now on this machine.

        `was`: what it was called before, and its entry then. `cached`: whether it was restored from the run cache.
        """
        start, used = ending.outcome.start or begin(), ending.outcome.usage
        unproven = entry_digest(entry) not in self._made if entry and cached else None
        if unproven:
            self.unproven.append(ending.name)
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
            commit=self._commit,
            dirty=self._dirty,
            environment=keep_environment(self._folder, start.environment) if start.environment else self._environment,
            varies=dict(varies),
            user=self._user,
            changes=self._changes,
            before=self._last,
            was=was and {"stage": was[0], "entry": entry_digest(was[1])},
            why=ending.why or None,
            unproven=unproven,
            cpu_s=round(used.cpu_s, 3),
            gpu_s=round(used.gpu_s, 3),
            read_bytes=used.read_bytes,
            written_bytes=used.written_bytes,
            identity=self._identity,
        )
        line = execution.line
        self._last = sha256(line)
        self._unwritten += line + b"\n"
        with suppress(OSError):
            append_lines(self._folder / LEDGER, self._unwritten)
            self._unwritten = b""
        return execution

    @cached_property
    def _last(self) -> str:
        return next((sha256(line) for line, _ in newest_first(self._folder)), BEGIN)

    @cached_property
    def _made(self) -> set[str]:
        return made_entries(self._folder)

    @cached_property
    def _environment(self) -> str:
        return keep_environment(self._folder, environment())


def _user() -> str | None:
    """Return the name of the user; None where the system knows none."""
    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):
        return None


def executions(folder: Path, older: bool = True) -> Iterator[Execution]:
    """Read the lines of all ledgers in a folder, each line once; truncated and damaged ones are skipped.

    Each ledger's lines are oldest first; those of this repository's runs come last. Without `older`, which a run does
    not need, lines moved by `move_older` are not read.
    """
    own = [folder / OLDER, folder / LEDGER] if older else [folder / LEDGER]
    others = other_ledgers(folder)
    if others:
        yield from _once(others, {_short(line) for path in own for line in _lines(path)})
    yield from _once(own, set())


def own_executions(folder: Path) -> Iterator[Execution]:
    """Read the lines that this repository's runs wrote and that `move_older` left, oldest first."""
    return _once([folder / LEDGER], set())


def made_entries(folder: Path) -> set[str]:
    """Return the digests of all dvc.lock entries that commands made according to any ledger, under any name."""
    made = (Result.DONE, Result.RENAMED)
    return {one.entry for one in executions(folder) if one.entry and one.result in made}


def _once(paths: Iterable[Path], seen: set[bytes]) -> Iterator[Execution]:
    """Read the lines of files, without lines that were seen before."""
    for path in paths:
        for line, execution in sound_lines(path):
            key = _short(line)
            if key not in seen:
                seen.add(key)
                yield execution


def _short(line: bytes) -> bytes:
    """Return a digest of a line that takes little memory."""
    return hashlib.blake2b(line, digest_size=16).digest()


def own_lines(folder: Path) -> Iterator[tuple[bytes, Execution]]:
    """Read the lines of the repository's own ledger from the start, including those moved by `move_older`."""
    return chain(sound_lines(folder / OLDER), sound_lines(folder / LEDGER))


def other_ledgers(folder: Path) -> list[Path]:
    """List the files with lines of other ledgers."""
    return sorted((folder / LEDGERS).glob("*.jsonl"))


def sound_lines(path: Path) -> Iterator[tuple[bytes, Execution]]:
    """Read the complete lines of a ledger's file with their content, oldest first."""
    is_own = path.name == LEDGER or path.match(OLDER)
    for line in _lines(path):
        if execution := parse_execution(line, None if is_own else path.name):
            yield line, execution


def newest_first(folder: Path) -> Iterator[tuple[bytes, Execution]]:
    """Read the lines of the repository's own ledger from the end."""
    return ((line, one) for line in lines_from_end(folder / LEDGER) if (one := parse_execution(line, None)))


def parse_execution(line: bytes, ledger: str | None) -> Execution | None:
    """Return what a line says; None if it is damaged."""
    with suppress(ValueError, TypeError, OverflowError, RecursionError):
        execution = Execution(**(json.loads(line) | {"ledger": ledger}))
        if _is_sound(execution):
            return execution
    return None


def older_lines(folder: Path, since: datetime) -> list[bytes]:
    """Return the first lines of the ledger that ended before a time, and are not of the last run."""
    lines = dict(sound_lines(folder / LEDGER))
    last = list(lines.values())[-1].run if lines else None
    lines_read: list[bytes] = []
    for line in _lines(folder / LEDGER):
        execution = lines.get(line)
        if execution and (execution.run == last or execution.ended >= since):
            break
        lines_read.append(line)
    return lines_read


def move_older(folder: Path, lines: list[bytes]) -> None:
    """Move the first lines of the ledger to the compressed ones; after a crash they are in both, and count once."""
    older, ledger = folder / OLDER, folder / LEDGER
    if not lines:
        return
    kept = list(_lines(ledger))[len(lines) :]
    older.parent.mkdir(exist_ok=True)
    before = older.read_bytes() if older.exists() else b""
    write_durably(older, before + gzip.compress(b"".join(line + b"\n" for line in lines), mtime=0))
    write_durably(ledger, b"".join(line + b"\n" for line in kept))


def _lines(path: Path) -> Iterator[bytes]:
    """Read a file's lines; of a compressed one that is damaged those before the damage."""
    if not path.is_file():
        return
    with (
        suppress(gzip.BadGzipFile, EOFError, zlib.error),
        gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file,
    ):
        for line in file:
            yield line.rstrip(b"\r\n")


def _is_sound(execution: Execution) -> bool:
    """Tell whether a line's values are of the right kinds; raise ValueError, TypeError or OverflowError about times."""
    words = (execution.stage, execution.result, execution.host, execution.run, execution.environment)
    is_known = execution.entry is None or isinstance(execution.entry, str)
    began, was = datetime.fromisoformat(execution.began), execution.was
    is_known &= was is None or (isinstance(was, dict) and all(isinstance(was.get(k), str) for k in ("stage", "entry")))
    others = [execution.flow_run, execution.commit, execution.user, execution.changes, execution.before, execution.why]
    others.append(execution.identity)
    is_known &= all(each is None or isinstance(each, str) for each in others)
    is_known &= isinstance(execution.varies, dict | None) and isinstance(execution.peak_rss_bytes, int)
    amounts = (execution.cpu_s, execution.gpu_s, execution.read_bytes, execution.written_bytes)
    is_known &= all(each is None or (isinstance(each, int | float) and 0 <= each < _MOST) for each in amounts)
    # Digests that are names of files.
    is_known &= not any("/" in (each or "") for each in (execution.environment, execution.changes))
    return (
        is_known
        and all(isinstance(each, str) for each in words)
        and bool(began.tzinfo and execution.ended)
        and execution.seconds >= 0
    )


def entry_digest(entry: Mapping[str, Any]) -> str:
    """Return a digest of an entry of dvc.lock, the same for a new entry and one read from the file."""
    text = json.dumps(_ordered(entry), default=str)
    if "\\u0085" in text:
        text = json.dumps(_ordered(read_again(dict(entry))), default=str)
    return sha256(text.encode())


def _ordered(value: Any) -> Any:
    if isinstance(value, Mapping):
        return sorted(([str(key), _ordered(item)] for key, item in value.items()), key=lambda pair: pair[0])
    return [_ordered(item) for item in value] if isinstance(value, list | tuple) else value
