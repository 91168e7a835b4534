"""Files on disk: durable writes, reading of files that may be damaged, and paths relative to a root."""

import ctypes
import fcntl
import json
import os
import secrets
import sqlite3
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any
from urllib.parse import quote


def from_root(root: str, path: str) -> str:
    """Return a path from the repository's root, with slashes."""
    return Path(os.path.relpath(path, root)).as_posix()


def is_in(path: str, folder: str) -> bool:
    """Tell whether a path is inside a folder."""
    return path.startswith(f"{folder}/")


def is_at_or_in(path: str, other: str) -> bool:
    """Tell whether two paths are equal, or the first one is inside the other."""
    return path == other or is_in(path, other)


def overlap(one: str, other: str) -> bool:
    """Tell whether two paths are equal or one contains the other."""
    return is_at_or_in(one, other) or is_in(other, one)


def file_state(path: str | Path) -> tuple[int, int, int] | None:
    """Return what changes when a file is written: its inode, size and time (ns); None if it is not there."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns


def sync_file_systems(folders: Iterable[str | Path]) -> None:
    """Put the file systems of these folders, or of their nearest existing parents, on disk; may raise OSError."""
    devices: dict[int, Path] = {}
    for folder in folders:
        there = next(path for path in (Path(folder), *Path(folder).parents) if path.is_dir())
        devices.setdefault(there.stat().st_dev, there)
    for there in devices.values():
        with _opened(there) as descriptor:
            if ctypes.CDLL(None, use_errno=True).syncfs(descriptor):
                raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def write_durably(path: Path, text: str | bytes) -> None:
    """Write a small file; after a crash of the machine it has its old text or the new one, complete."""
    with _replacing({path: text}) as (temporary,), temporary.open("rb") as file:
        os.fsync(file.fileno())


def sync_then_write(folders: Iterable[str | Path], texts: Mapping[Path, str]) -> None:
    """Sync the file systems of these folders, then replace small text files there.

    After a crash of the machine, each file has its old text or its new one; the new one only if everything else is
    on disk. One sync is enough: the new texts are written before it, and renamed after it.
    """
    with _replacing(texts) as temporaries:
        sync_file_systems([*folders, *(temporary.parent for temporary in temporaries)])


def read_json(path: Path) -> dict[str, Any] | None:
    """Read a JSON object; None if the file is missing, no plain file, or has anything else."""
    try:
        content = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None
    except (OSError, ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) else None


def append_lines(path: Path, lines: bytes) -> None:
    """Append whole lines; start a new line first if a kill or a full disk truncated the last one."""
    with path.open("ab+") as file:
        if file.tell():
            file.seek(-1, os.SEEK_END)
            lines = lines if file.read(1) == b"\n" else b"\n" + lines
        file.write(lines)


def lines_from_end(path: Path) -> Iterator[bytes]:
    """Read the lines of a file from the last one on: first the text after the last newline, which is usually empty."""
    if not path.is_file() or not path.stat().st_size:
        return
    with path.open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as content:
        end = len(content)
        while end >= 0:
            begin = content.rfind(b"\n", 0, end) + 1
            yield content[begin:end].rstrip(b"\r")
            end = begin - 1


def sync_names(folder: Path) -> None:
    """Wait until a folder's entries are on disk, after files were created, renamed or removed."""
    with _opened(folder) as descriptor:
        os.fsync(descriptor)


@contextmanager
def locked_folder(folder: Path) -> Iterator[None]:
    """Let one process or thread at a time into the block; on a file system without locks, all of them."""
    with _opened(folder) as descriptor:
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield


@contextmanager
def _replacing(texts: Mapping[Path, str] | Mapping[Path, bytes | str]) -> Iterator[tuple[Path, ...]]:
    """Write text files under temporary names, yield these, and rename them at the end of the block.

    If several processes or threads write the same file, each waits for the previous one. A file keeps its mode, and
    a link stays a link: its target is replaced.
    """
    places = {Path(os.path.realpath(path)): text for path, text in texts.items()}
    with ExitStack() as stack:
        # In one order: two writers of several files would otherwise wait for each other.
        temporaries = {path: stack.enter_context(_own_temporary(path)) for path in sorted(places)}
        try:
            for path, temporary in temporaries.items():
                text = places[path]
                temporary.write_bytes(text.encode() if isinstance(text, str) else text)
                _take_over(path, temporary)
            yield tuple(temporaries.values())
            for path, temporary in temporaries.items():
                temporary.replace(path)
        except BaseException:
            # Free the space: the disk may be full.
            for temporary in temporaries.values():
                with suppress(OSError):
                    temporary.unlink(missing_ok=True)
            raise


@contextmanager
def _own_temporary(path: Path) -> Iterator[Path]:
    """Create the temporary file that will replace `path`, and lock it for the block.

    The name is fixed, so that the next writer overwrites what a killed one left. On a file system without locks the
    name is random instead.
    """
    temporary = path.with_name(f"{path.name}.new")
    while True:
        try:
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
        except PermissionError:
            temporary.unlink()  # what a killed writer left has the mode of a file that may not be written
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        except OSError:
            os.close(descriptor)
            temporary.unlink(missing_ok=True)
            yield path.with_name(f"{path.name}.{secrets.token_hex(4)}.new")
            return
        if _is_still(descriptor, temporary):
            break
        os.close(descriptor)  # the previous writer renamed the file or removed it
    try:
        yield temporary
    finally:
        os.close(descriptor)


def _is_still(descriptor: int, path: Path) -> bool:
    """Tell whether a path still names the file that was opened by it."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.lstat(path))
    except FileNotFoundError:
        return False


def _take_over(path: Path, temporary: Path) -> None:
    """Copy a replaced file's mode to the new file; and its owner and group, if this user may."""
    with suppress(FileNotFoundError):
        before = path.stat()
        for owner, group in ((before.st_uid, before.st_gid), (-1, before.st_gid)):
            with suppress(PermissionError):
                os.chown(temporary, owner, group)
                break
        os.chmod(temporary, stat.S_IMODE(before.st_mode))


@contextmanager
def _opened(folder: Path) -> Iterator[int]:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


_WAIT_S = 1.0  # for one that is being written, which is then taken to be whole
_MOST_BYTES = 64_000_000  # a larger one is not read whole, which would take longer than a plan


def is_damaged(path: Path) -> bool:
    """Tell whether a file, or a folder in its place, is certainly a damaged database; False if it cannot be opened."""
    if path.is_dir():
        return True
    what = "PRAGMA quick_check(1)" if path.stat().st_size < _MOST_BYTES else "SELECT 'ok' FROM sqlite_master LIMIT 1"
    try:
        with closing(sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True, timeout=_WAIT_S)) as connection:
            return connection.execute(what).fetchall() not in ([("ok",)], [])
    except sqlite3.OperationalError:  # locked, or not readable: who opens it says so
        return False
    except sqlite3.DatabaseError:
        return True


def vacuum(path: Path) -> None:
    """Return a database's free space to the disk; a database in use keeps it."""
    with suppress(sqlite3.OperationalError), closing(sqlite3.connect(path, timeout=_WAIT_S)) as connection:
        connection.execute("VACUUM")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
