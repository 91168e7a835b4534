"""The output of a stage's commands: split into lines, and kept in a log file.

`python -m dvcfleet.worker.output LOG` reads what a stage's children print after its end.
"""

import fcntl
import hashlib
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path
from urllib.parse import quote, unquote

from dvcfleet.errors import UserError, did_you_mean
from dvcfleet.repository import STATE_FOLDER, root_around
from dvcfleet.terminal.secrets import LineMask, masked, may_hold_credential

LOGS = f"{STATE_FOLDER}/logs"
TAIL_LINES = 30
BAR_S = 60.0
# Output is passed on in blocks of about this size, or after this time.
BLOCK_BYTES = 1 << 16
BLOCK_S = 0.5
_LINE_LIMIT = 1 << 16
_READ_BYTES = 1 << 20
_POLL_S = 0.3


class Lines:
    """Splits a byte stream into lines, masks credentials, and passes them on in blocks; keeps the last lines.

    `on_text` gets whole lines with their ends, and longer lines in parts. Call `pass_on` when `due_s` says so. From
    a progress bar, which rewrites its line, it gets the final text, and the current one every `BAR_S` seconds.
    """

    def __init__(self, on_text: Callable[[str], None]) -> None:
        self._on_text, self._rest = on_text, b""
        self._mask = LineMask()
        self._last: deque[str] = deque(maxlen=TAIL_LINES)
        self._block: list[str] = []
        self._size = 0
        self._due = 0.0
        self._kept = time.monotonic()

    def feed(self, data: bytes) -> None:
        """Take the next bytes."""
        lines, is_end, self._rest = (self._rest + data).rpartition(b"\n")
        if is_end:
            self._keep(lines)
        shown, is_bar, _current = self._rest.rstrip(b"\r").rpartition(b"\r")
        if is_bar:
            if time.monotonic() > self._kept + BAR_S:
                self._keep(shown)
            self._rest = self._rest[len(shown) + 1 :]
        while len(self._rest) > _LINE_LIMIT:
            part = first_part(self._rest)
            self._add(masked(part.decode(errors="replace")))
            self._rest = self._rest[len(part) :]

    def say(self, line: str) -> None:
        """Add a line of the engine's own."""
        self._add(f"{masked(line)}\n")

    def due_s(self) -> float | None:
        """Return the seconds until what was added should be passed on; None if there is nothing."""
        return max(0.0, self._due - time.monotonic()) if self._block else None

    def pass_on(self) -> None:
        """Pass on what was added since the last time."""
        if self._block:
            text = "".join(self._block)
            self._block, self._size = [], 0
            self._on_text(text)

    def last(self) -> tuple[str, ...]:
        """Pass on the rest at the end of the stream, and return the last lines."""
        if self._rest:
            self._keep(self._rest)
            self._rest = b""
        self.pass_on()
        return tuple(self._last)

    def _keep(self, lines: bytes) -> None:
        text = lines.decode(errors="replace")
        if "\r" in text:
            text = "\n".join(line.rstrip("\r").rsplit("\r", 1)[-1] for line in text.split("\n"))
        text = self._mask.masked(text)
        self._last.extend(text.rsplit("\n", TAIL_LINES)[-TAIL_LINES:])
        self._add(f"{text}\n")

    def _add(self, text: str) -> None:
        self._kept = time.monotonic()
        if not self._block:
            self._due = self._kept + BLOCK_S
        self._block.append(text)
        self._size += len(text)
        if self._size >= BLOCK_BYTES:
            self.pass_on()


def first_part(line: bytes) -> bytes:
    """Return the first part of a line that is too long to wait for its end: half of it, if no credential is there.

    A credential is masked only if it is whole. So nothing is cut where the two parts would be masked otherwise than the
    whole; if there is no such place, all of the line is one part.
    """
    text = line.decode(errors="replace")
    half = len(line) // 2
    cuts = [line.find(gap, half) for gap in (b" ", b"\t", b",")]
    # Not within a character: those bytes begin with the bits 10.
    cuts += [cut for cut in range(half, half + 4) if line[cut] & 0xC0 != 0x80]
    cuts = [cut for cut in cuts if cut > 0]
    if not may_hold_credential(text):
        return line[: cuts[0]] if cuts else line
    whole = masked(text)
    for cut in cuts:
        if masked(line[:cut].decode(errors="replace")) + masked(line[cut:].decode(errors="replace")) == whole:
            return line[:cut]
    return line


def log_path(root: Path, stage: str) -> Path:
    """Return a stage's log file, in the state folder of the repository at `root`."""
    name = quote(stage, safe="@,=+ ")
    if len(name) > 200:
        name = f"{name[:150]}-{hashlib.md5(name.encode()).hexdigest()}"
    return root / LOGS / f"{name}.log"


@contextmanager
def logging_to(path: Path, on_text: Callable[[str], None]) -> Iterator[Callable[[str], None]]:
    """Yield a function that appends text to a log and passes it to `on_text`.

    The log is locked within the block, so that a reader knows that more may come. A log that cannot be written (the
    disk is full) does not fail the stage.
    """
    log: FileIO | None = None

    def write(text: str) -> None:
        with suppress(OSError):
            if log:
                log.write(text.encode(errors="replace"))
        on_text(text)

    try:
        with suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            log = FileIO(path, "a")
            with suppress(OSError):  # without file locks, readers do not wait for more
                fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield write
    finally:
        if log:
            with suppress(OSError):
                log.close()


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


def output_of(stage: str, repo: Path, follow: bool = False) -> Iterator[bytes]:
    """Read a stage's kept output, with `follow` also what it prints until it ends; raise UserError if none is kept."""
    root = root_around(repo)
    path = log_path(root, stage)
    if not path.exists():
        names = [unquote(path.stem) for path in sorted((root / LOGS).glob("*.log"))]
        other = f"no output of it is kept here: it has not run, or the name is misspelt{did_you_mean(stage, names)}"
        raise UserError(f"stage {stage}: {other}")
    with FileIO(path) as log:
        while True:
            is_going_on = follow and is_written(log)
            if data := log.read(_READ_BYTES):
                yield data
            elif not is_going_on:
                return
            else:
                time.sleep(_POLL_S)


def main() -> None:
    """Append standard input to the log until it ends; if the log cannot be written, read on nevertheless."""
    os.set_blocking(0, True)
    with logging_to(Path(sys.argv[1]), lambda text: None) as write:
        lines = Lines(write)
        while data := os.read(0, _READ_BYTES):
            lines.feed(data)
            lines.pass_on()
        lines.last()


if __name__ == "__main__":
    main()
