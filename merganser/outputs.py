"""Files and folders that appear whole or not at all, even if other processes write to the same name."""

import errno
import fcntl
import glob
import json
import os
import re
import secrets
import shutil
import stat
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from merganser.errors import InputError

PARTIAL, LOCK = "partial", "lock"  # what the names end in of what is being written, and of whom it is written by
NAMELESS_S = 1.0


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Open a temporary file that takes its name only when whole and synced; never write into an existing file.

    Each of several writers waits for the one before.
    """
    temporary = path.with_name(f".{path.name}.{PARTIAL}")
    descriptor, _ = _opened_alone(temporary, fcntl.LOCK_EX)
    with os.fdopen(descriptor, "wb") as file:
        try:
            file.truncate()
            yield file
            file.flush()
            os.fsync(file.fileno())
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise


def write_json(path: Path, content: Any) -> None:
    """Write a small JSON file, whole or not at all, never into an existing one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as file:
        file.write((json.dumps(content, indent=2) + "\n").encode())


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON file that a stage wrote; raise InputError when it is not there."""
    if not path.is_file():
        raise InputError(f"{path}: missing; run the stage that writes it first (`dvc repro` or `merganser run` does)")
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return content


@contextmanager
def fresh_folder(path: Path) -> Iterator[Path]:
    """Give an empty folder that takes the place of `path`, an output of a stage, when the block ends well."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{PARTIAL}")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    try:
        yield partial
        if path.exists():
            shutil.rmtree(path)
        partial.rename(path)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Give an empty folder that takes a name of the user's when the block ends well, and is on the disk then.

    Raises InputError where the name is taken, at the start or at the end, or another process writes to it.
    """
    with new_output(path) as place:
        partial = place.with_name(f".{place.name}.{PARTIAL}-{secrets.token_hex(4)}")
        with _said_of(path):
            partial.mkdir()
        try:
            yield partial
            _sync_tree(partial)
            refuse_existing(path)
            with _said_of(path):
                partial.rename(place)
        finally:
            shutil.rmtree(partial, ignore_errors=True)


@contextmanager
def new_output(path: Path) -> Iterator[Path]:
    """Let this process alone write a new file or folder; give its place, links resolved. It is on disk at the end.

    Leftovers of a killed writer next to it are removed. Raises InputError if the name is taken, or another process
    writes to it.
    """
    with one_writer(path) as place:
        refuse_existing(path)
        yield place


def write_whole(path: Path, text: str) -> None:
    """Replace a user's text file, completely or not at all; a device or pipe is written into.

    Raises InputError if another process writes it, or if it cannot be written.
    """
    if path.exists() and not path.is_file():
        with _said_of(path):
            path.write_text(text, encoding="utf-8")
        return
    with one_writer(path) as place, _said_of(path), replacing(place) as file:
        file.write(text.encode())


@contextmanager
def one_writer(path: Path) -> Iterator[Path]:
    """Let this process alone write to a name of the user's; give its place, links resolved.

    The lock, on a file next to it, ends with the process, however that ends. Raises InputError naming the process
    that holds it, or if the place cannot be written.
    """
    place = Path(os.path.realpath(path))
    lock, above = place.with_name(f".{place.name}.{LOCK}"), place.parent
    made = [folder for folder in (above, *above.parents) if not folder.exists()]
    with _said_of(path):
        above.mkdir(parents=True, exist_ok=True)
        descriptor, is_alone = _locked(lock, path)
    try:
        for left in above.glob(glob.escape(f".{place.name}.{PARTIAL}") + "*") if is_alone else ():
            _remove(left)
        yield place
        for folder in (above, *(folder.parent for folder in made)):
            _sync(folder)
    finally:
        lock.unlink(missing_ok=True)
        os.close(descriptor)


def refuse_existing(out: Path) -> None:
    """Never write over what is there: an output is a new name, or an empty folder."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise InputError(f"{out}: exists already and is not empty; name a new one, or remove it first")


def _opened_alone(path: Path, how: int) -> tuple[int, bool]:
    """Open a file to write, created if missing, with a lock; raise BlockingIOError if another process holds it.

    If the file system has no locks, it is opened without one, and False is returned.
    """
    while True:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
        try:
            fcntl.flock(descriptor, how)
        except BlockingIOError:
            os.close(descriptor)
            raise
        except OSError:
            return descriptor, False
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(descriptor), os.stat(path, follow_symlinks=False)):
                return descriptor, True
        os.close(descriptor)  # who had the lock renamed or removed the file


def _locked(lock: Path, path: Path) -> tuple[int, bool]:
    """Take a lock and write into it who has it; raise InputError naming the process that has it already.

    Just after taking it that process has not yet written who it is: it is asked again until that moment has passed.
    """
    end = time.monotonic() + NAMELESS_S
    while True:
        try:
            descriptor, is_alone = _opened_alone(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(descriptor, 0)  # of one that was killed
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
            return descriptor, is_alone
        except BlockingIOError as error:
            who = _writer(lock)
            if who or time.monotonic() > end:
                who = f"process {who}" if who else "another process"
                raise InputError(f"{path}: {who} is writing it; wait until it ends, or name another") from error
        time.sleep(0.01)


def _writer(lock: Path) -> str:
    """Return the id of the process that holds a lock; nothing where it has not written it."""
    with suppress(OSError), lock.open("rb") as file:
        if match := re.fullmatch(rb"(\d{1,20})\n", file.read(32)):
            return match[1].decode()
    return ""


@contextmanager
def _said_of(path: Path) -> Iterator[None]:
    """Raise InputError where a name cannot be written to."""
    try:
        yield
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror}); name another place") from error


def _sync_tree(folder: Path) -> None:
    """Have the disk hold a folder's files, and the folders themselves."""
    for inside, _, names in os.walk(folder, topdown=False):
        for name in names:
            if stat.S_ISREG(os.lstat(os.path.join(inside, name)).st_mode):
                _sync(Path(inside, name))
        _sync(Path(inside))


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:  # of a file system that cannot sync a folder
            raise
    finally:
        os.close(descriptor)


def _remove(path: Path) -> None:
    shutil.rmtree(path, ignore_errors=True)
    with suppress(OSError):
        path.unlink()


def remove_others(folder: Path, known: Collection[str]) -> None:
    """Remove what lies in a folder under other names: what a kill left, and what is of something no longer there."""
    for path in folder.iterdir():
        if path.name not in known:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
