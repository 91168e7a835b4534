"""Exit of commands: an error becomes one line that says what is wrong, where, and the remedy.

An error with an `exit_code` has a message for the user. Libraries' errors are recognised by the names of their classes,
since importing the libraries takes seconds. An unexpected error's traceback goes to a file, which the line names.
"""

import errno
import io
import os
import signal
import sqlite3
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from .secrets import masked, printable
from .standard_streams import drop_unwritten, open_streams

Words = Callable[[BaseException], str | None]

EXIT_CODES = (
    "Exit codes: 0 done, 1 something failed, 2 your mistake, 75 another run or a dvc command is at work in the "
    "repository (try again later), 130 stopped by Ctrl-C, 143 by SIGTERM, 129 by SIGHUP."
)
MISTAKE = 2  # the exit code of a mistake of the user's
_FULL = (errno.ENOSPC, errno.EDQUOT)
_REMEDIES = {
    errno.EIO: "the disk or its connection fails; see the system's log",
    errno.EACCES: "give this user permission",
    errno.EPERM: "give this user permission",
    errno.EROFS: "choose a writable folder",
    errno.EISDIR: "a folder is in the place of a file: move it away",
    errno.ENOTDIR: "a file is in the place of a folder: move it away",
    errno.EEXIST: "something else is in its place: move it away",
}
_LITTLE_BYTES = 50_000_000  # free on a disk: databases, logs and temporary files may fail for it in words of their own
_FEW_FILES = 100  # that a disk still takes
_UNREADABLE = (
    *(
        "json.decoder.JSONDecodeError",
        "builtins.UnicodeDecodeError",
        "pickle.UnpicklingError",
        "_pickle.UnpicklingError",
    ),
    *("yaml.error.YAMLError", "ruamel.yaml.error.YAMLError", "tomllib.TOMLDecodeError", "builtins.EOFError"),
)
_NO_MEMORY = ("can't allocate memory", "out of memory", "not enough memory")  # as libraries say it
_NO_THREAD = "can't start new thread"
_PATH_NAMES = ("path", "filename", "fs_path")  # of variables that hold a path as text
_KEPT_TRACEBACKS = 20


@dataclass(frozen=True)
class Failure:
    """The exit of a command after an error: a line for the user, empty if there is nothing to say, and its code."""

    message: str
    code: int


@contextmanager
def boundary(
    known: Words = lambda error: None,
    state_folder: Callable[[], Path | None] = lambda: None,
) -> Iterator[None]:
    """End the process with the line and the exit code of an error in the block.

    `known` is as in `failure_of`; `state_folder` returns the folder for a traceback.
    """
    open_streams()
    try:
        try:
            yield
        finally:
            sys.stdout.flush()  # what cannot be written is to be said here, not at the interpreter's end
    except SystemExit:
        raise
    except BaseException as error:
        failure = failure_of(error, known, state_folder)
        if isinstance(error, OSError):
            drop_unwritten(sys.stdout)
        if failure.message:
            with suppress(OSError):  # the exit code tells all the same
                print(failure.message, file=sys.stderr if failure.code else sys.stdout, flush=True)
        sys.exit(failure.code)


def failure_of(
    error: BaseException,
    known: Words = lambda error: None,
    state_folder: Callable[[], Path | None] = lambda: None,
) -> Failure:
    """Return the exit of a command after an error.

    `known` explains errors of further libraries. The traceback of an unexpected error goes to the folder that
    `state_folder` returns, else to the system's temporary folder.
    """
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if is_a(error, "dvc.exceptions.DvcException"):
        return Failure(_shown(str(error)), MISTAKE)
    if isinstance(code := getattr(error, "exit_code", None), int):
        return Failure(_shown(str(error)), code)
    if isinstance(error, KeyboardInterrupt):
        return Failure("stopped", 128 + signal.SIGINT)
    if isinstance(error, BrokenPipeError):
        return Failure("", 1)  # who read the output wants no more of it
    words = known(error) or _words(error) or _unforeseen(error, state_folder)
    return Failure(_shown(words), 1)


def is_mistake(error: BaseException) -> bool:
    """Tell whether an error is a user error: its class has the `exit_code` 2, like click's usage error."""
    return getattr(error, "exit_code", None) == MISTAKE


def is_a(error: BaseException, *names: str) -> bool:
    """Tell whether an error's class, or one of its bases, has one of these full names."""
    return any(f"{kind.__module__}.{kind.__qualname__}" in names for kind in type(error).__mro__)


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__


def space_words(path: Path | None = None) -> str:
    """Return how little fits on a path's disk, by default the current folder's; empty if there is enough space."""
    place = (path or Path()).absolute()
    existing = next((each for each in (place, *place.parents) if each.exists()), Path("/"))
    disk = os.statvfs(existing)
    if disk.f_files and disk.f_favail < _FEW_FILES:  # some file systems count no files
        return f"; the disk of {existing} has room for {disk.f_favail} more files: remove some"
    free = disk.f_bavail * disk.f_frsize
    return f"; {free // 1000:,} kB are free on the disk of {existing}: free some space" if free < _LITTLE_BYTES else ""


def _words(error: BaseException) -> str | None:
    """Explain an error of the system, or of a library that commands use; None for other errors."""
    if is_a(error, "httpx.HTTPError", "prefect.exceptions.PrefectException"):
        return f"Prefect's server refused a request ({_first_line(error)}){space_words()}"
    if isinstance(error, sqlite3.Error):
        return f"{_file_at(error) or 'a database'}: {_first_line(error)}{space_words()}"
    if isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and any(w in str(error) for w in _NO_MEMORY)):
        return f"not enough memory ({_first_line(error)}): give it more, or do less at once"
    if _NO_THREAD in str(error) or isinstance(error, BlockingIOError):
        lack = getattr(error, "strerror", None) or _first_line(error)
        return f"{lack}: raise the limit of processes and threads (ulimit -u, or a container's pids limit)"
    if isinstance(error, RuntimeError) and "home directory" in str(error):  # of pathlib, or platformdirs
        return "this user has no home directory: set HOME to a writable folder"
    if isinstance(error, OSError):
        return system_words(error)
    if is_a(error, *_UNREADABLE) and (file := _file_at(error)):
        return f"{file}: damaged, or of another format ({_first_line(error)})"
    return None


def system_words(error: OSError) -> str:
    """Return what an error of the system says, of which file, and what to do."""
    if error.strerror is None or error.errno is None:
        return str(error) or type(error).__name__
    names = [os.fsdecode(name) for name in (error.filename, error.filename2) if isinstance(name, str | bytes)]
    where = " and ".join(names) or str(_file_at(error) or "")
    text = f"{where}: {error.strerror}" if where else error.strerror
    if error.errno in _FULL:
        return f"{text}{space_words(Path(names[0]) if names else None) or ': free some space'}"
    remedy = _REMEDIES.get(error.errno)
    return f"{text}: {remedy}" if remedy else text


def _file_at(error: BaseException) -> Path | None:
    """Return the file that was being read when an error was raised, from the local variables of the reading code."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    for frame in reversed(frames):
        for name, value in frame.f_locals.items():
            if name in _PATH_NAMES and isinstance(value, str | bytes) and os.path.exists(value):
                return Path(os.fsdecode(value))
            directory = getattr(value, "_directory", None)  # a cache of diskcache
            if isinstance(directory, str):
                return Path(directory)
            if isinstance(value, Path) and value.exists():
                return value
            if isinstance(value, io.IOBase) and isinstance(opened := getattr(value, "name", None), str):
                return Path(opened)
        if frame.f_globals.get("__name__", "").partition(".")[0] not in sys.stdlib_module_names:
            return None
    return None


def _unforeseen(error: BaseException, state_folder: Callable[[], Path | None]) -> str:
    kind = type(error).__name__
    file = _keep_traceback(error, state_folder)
    kept = f"its traceback is in {file}" if file else "its traceback could not be saved"
    return f"unexpected {kind}: {_first_line(error)}; {kept}{space_words()}"


def _keep_traceback(error: BaseException, state_folder: Callable[[], Path | None]) -> Path | None:
    """Write an error's traceback to a new file; return the file, None if none can be written."""
    text = masked("".join(traceback.format_exception(error)))
    with suppress(Exception):  # the state folder may be what is damaged
        if state := state_folder():
            return _written_in(state / "failures", text)
    with suppress(OSError):
        return _written_in(Path(tempfile.mkdtemp(prefix="failure-")), text)
    return None


def _written_in(folder: Path, text: str) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.txt"
    path.write_text(text, encoding="utf-8", errors="backslashreplace")
    for old in sorted(folder.glob("*.txt"))[:-_KEPT_TRACEBACKS]:
        old.unlink(missing_ok=True)
    return path


def _shown(text: str) -> str:
    return printable(masked(text))
