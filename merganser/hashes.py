"""Hashes of files, folders and JSON values."""

import hashlib
import json
from pathlib import Path
from threading import Lock
from typing import Any

from merganser.errors import InputError
from merganser.limits import check_file


def sha256_of(path: Path) -> str:
    """Hash a file; raise InputError for anything else."""
    check_file(path)
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def git_id_of(path: Path) -> str:
    """Return the id that git gives a file's content: a SHA-1 of its size and bytes."""
    check_file(path)
    digest = hashlib.sha1(f"blob {path.stat().st_size}\0".encode(), usedforsecurity=False)
    with path.open("rb") as file:
        hashlib.file_digest(file, lambda: digest)
    return digest.hexdigest()


class ReadDigest:
    """The sha256 of a file from bytes that others read, in about the file's order.

    Bytes that come early wait in memory, up to `AHEAD`; bytes that nobody reads in time are read here. Threads may
    share it.
    """

    AHEAD = 2**24  # bytes

    def __init__(self, path: Path) -> None:
        self._path, self._hash, self._done = path, hashlib.sha256(), 0
        self._early: dict[int, bytes] = {}  # by where they begin
        self._lock = Lock()

    def take(self, start: int, values: memoryview) -> None:
        """Take the file's bytes from `start` on."""
        with self._lock:
            if start > self._done:
                self._early[start] = bytes(values)
                if sum(map(len, self._early.values())) <= self.AHEAD:
                    return
                self._read_until(start)
            else:
                self._add(start, values)
            for early in sorted(self._early):
                if early > self._done:
                    break
                self._add(early, memoryview(self._early.pop(early)))

    def hexdigest(self) -> str:
        """Read the rest of the file, and return the sha256 of all of it."""
        with self._lock:
            self._early.clear()
            self._read_until(self._path.stat().st_size)
            return self._hash.hexdigest()

    def _add(self, start: int, values: memoryview) -> None:
        self._hash.update(values[self._done - start :])
        self._done = max(self._done, start + len(values))

    def _read_until(self, end: int) -> None:
        """Hash the bytes before `end`: waiting ones from memory, others from the file."""
        with self._path.open("rb", buffering=0) as file:
            while self._done < end:
                if early := [start for start in self._early if start <= self._done]:
                    self._add(early[0], memoryview(self._early.pop(early[0])))
                    continue
                file.seek(self._done)
                read = file.read(min([2**20, end - self._done, *(start - self._done for start in self._early)]))
                if not read:
                    raise InputError(f"{self._path}: became shorter while it was read; merge again")
                self._add(self._done, memoryview(read))


def sha256_of_tree(path: Path) -> str:
    """Hash a file, or the names and contents of the files in a folder.

    Raises InputError if the path does not exist.
    """
    if path.is_file():
        return sha256_of(path)
    if not path.is_dir():
        raise InputError(f"{path}: missing; run the stage that writes it first (`dvc repro` or `merganser run` does)")
    files = sorted(file for file in path.rglob("*") if file.is_file())
    listed = "".join(f"{file.relative_to(path).as_posix()} {sha256_of(file)}\n" for file in files)
    return hashlib.sha256(listed.encode()).hexdigest()


def sha256_of_json(content: Any) -> str:
    """Hash a JSON value, whatever the order of its keys."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
