"""The output of a stage's commands: split into lines, and kept in a log file."""

import fcntl
import hashlib
import os
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path
from urllib.parse import quote

from dvcfleet.repository import STATE_FOLDER
from dvcfleet.secrets import masked

LOGS = f"{STATE_FOLDER}/logs"
TAIL_LINES = 30
BAR_S = 60.0
_LINE_LIMIT = 1 << 16
# Above this size a log is rotated, replacing the one rotated before.
_LIMIT_BYTES = 4 << 20
_ASIDE = ".1"


class Lines:
    """Splits a byte stream into lines, passes each to `on_line` with credentials masked, and keeps the last ones.

    For a progress bar, which rewrites its line, it passes the final text, and the current one every `BAR_S` seconds.
    """

    def __init__(self, on_line: Callable[[str], None]) -> None:
        self._on_line, self._rest = on_line, b""
        self._last: deque[str] = deque(maxlen=TAIL_LINES)
        self._handed_on = time.monotonic()

    def feed(self, data: bytes) -> None:
        """Take the next bytes."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._keep(line)
        shown, is_bar, _current = self._rest.rstrip(b"\r").rpartition(b"\r")
        if is_bar:
            if time.monotonic() > self._handed_on + BAR_S:
                self._keep(shown)
            self._rest = self._rest[len(shown) + 1 :]
        if len(self._rest) > _LINE_LIMIT:
            self._keep(self._rest)
            self._rest = b""

    def last(self) -> tuple[str, ...]:
        """Return the last lines, at the end of the stream."""
        if self._rest:
            self._keep(self._rest)
            self._rest = b""
        return tuple(self._last)

    def _keep(self, line: bytes) -> None:
        text = masked(line.decode(errors="replace").rstrip("\r").rsplit("\r", 1)[-1])
        self._on_line(text)
        self._last.append(text)
        self._handed_on = time.monotonic()


def log_path(root: Path, stage: str) -> Path:
    """Return a stage's log file, in the state folder of the repository at `root`."""
    name = quote(stage, safe="@,=+ ")
    if len(name) > 200:
        name = f"{name[:150]}-{hashlib.md5(name.encode()).hexdigest()}"
    return root / LOGS / f"{name}.log"


def parts(path: Path) -> list[Path]:
    """Return the files of a log, oldest first."""
    return [each for each in (path.with_name(path.name + _ASIDE), path) if each.exists()]


def clear_log(path: Path) -> None:
    """Remove a stage's log of an earlier run."""
    for each in parts(path):
        each.unlink(missing_ok=True)


@contextmanager
def logged(path: Path, on_line: Callable[[str], None]) -> Iterator[Callable[[str], None]]:
    """Yield a function that appends a line to a log and passes it to `on_line`.

    The log is locked within the block, so that a reader knows that more may come. A log that cannot be written (the
    disk is full) does not fail the stage.
    """
    log: FileIO | None = None

    def write(line: str) -> None:
        nonlocal log
        with suppress(OSError):
            if log and log.tell() > _LIMIT_BYTES:
                path.replace(path.with_name(path.name + _ASIDE))
                successor = _opened(path)
                log.close()
                log = successor
            if log:
                log.write(f"{line}\n".encode(errors="replace"))
        on_line(line)

    try:
        with suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            log = _opened(path)
        yield write
    finally:
        if log:
            with suppress(OSError):
                log.close()


def _opened(path: Path) -> FileIO:
    """Open a log for appending, and lock it."""
    log = FileIO(path, "a")
    with suppress(OSError):  # without file locks, readers do not wait for more
        fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return log


def is_written(log: FileIO) -> bool:
    """Tell whether the log's stage is still running."""
    try:
        fcntl.flock(log, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    fcntl.flock(log, fcntl.LOCK_UN)
    return False


def last_line(path: Path) -> str:
    """Return the last non-empty line of a log, or an empty string."""
    try:
        with open(path, "rb") as log:
            log.seek(max(0, os.fstat(log.fileno()).st_size - 4096))
            lines = log.read().decode(errors="replace").split("\n")
    except OSError:
        return ""
    return next((line for line in reversed(lines) if line.strip()), "")
