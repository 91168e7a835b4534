"""The hashes of the files on disk: every byte is read, and DVC's records of file times are not trusted."""

import hashlib
import os
import re
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from dvcfleet.disk import from_root
from dvcfleet.dvc_adapter.lock_entries import split_lock_file
from dvcfleet.dvc_adapter.objects import folder_hash
from dvcfleet.dvc_adapter.protocols import Item, Repo
from dvcfleet.errors import UserError
from dvcfleet.terminal.machine_limits import usable_cpus

_Identity = tuple[int, int]


class Contents:
    """Hashes of files and folders; a file with several names, by links to DVC's cache, is read once.

    `files` and `size` count the files and bytes read; `inside`: nothing outside the repository is read.
    """

    def __init__(self, repo: Repo, inside: bool = False) -> None:
        self._repo, self._inside = repo, inside
        self._hashes: dict[_Identity, str] = {}
        self._listed: dict[str, list[str]] = {}
        self.files = 0
        self.size = 0

    def checks(self, item: Item) -> bool:
        """Tell whether an input or output is compared: a local file or folder that may be read."""
        return is_checked(item) and (item.is_in_repo or not self._inside)

    def read(self, files: Iterable[str]) -> None:
        """Hash many files in parallel; missing files are skipped."""
        identities = {key: path for path in files if (key := _identity(path))}
        todo = {key: path for key, path in identities.items() if key not in self._hashes}
        with ThreadPoolExecutor(usable_cpus()) as pool:
            self._hashes.update(zip(todo, pool.map(digest_of, todo.values()), strict=True))
        self.files += len(todo)
        self.size += sum(os.path.getsize(path) for path in todo.values())

    def hash_of(self, path: str) -> str | None:
        """Return a file's md5; None if it is missing."""
        key = _identity(path)
        if key is None:
            return None
        if key not in self._hashes:
            self.read([path])
        return self._hashes[key]

    def listing(self, folder: str) -> dict[str, str]:
        """Return the md5 of each file in a folder by relative path, without files that .dvcignore excludes."""
        files = self.within(folder)
        self.read(files)
        return {from_root(folder, path): self.hash_of(path) or "" for path in files}

    def size_of(self, path: str) -> int:
        """Return the bytes of a file, or of all files of a folder."""
        return sum(os.path.getsize(file) for file in self.within(path))

    def within(self, path: str) -> list[str]:
        """Return the files of a folder that .dvcignore does not exclude; for a file, the file itself."""
        if not os.path.isdir(path):
            return [path]
        if path not in self._listed:
            walk = self._repo.dvcignore.walk(self._repo.fs, path)
            self._listed[path] = [os.path.join(root, name) for root, _, names in walk for name in names]
        return self._listed[path]

    def digest(self, path: str) -> str | None:
        """Return DVC's hash of a file or folder; None if it is missing."""
        return folder_hash(self.listing(path)) if os.path.isdir(path) else self.hash_of(path)


def is_checked(item: Item) -> bool:
    """Tell whether an item is a local file or folder whose md5 DVC recorded; raise UserError for a hash of DVC 2."""
    if item.protocol != "local" or not item.hash_info:
        return False
    if item.hash_info.name == "md5-dos2unix":
        raise UserError(
            f"{path_from_root(item)}: recorded by DVC 2, and its hashes leave bytes out; run its stage again"
        )
    return bool(item.hash_info.name == "md5")


def was_changed(root: Path, stage: str, folder: str) -> bool:
    """Tell, in milliseconds, whether an output folder differs from the root's dvc.lock."""
    lock_file, place = root / "dvc.lock", root / folder
    text = lock_file.read_text(encoding="utf-8", errors="replace") if lock_file.is_file() else ""
    entry = (split_lock_file(text) or {}).get(stage, "")
    recorded = re.search(rf"path: {re.escape(folder)}\n +hash: md5\n +md5: (\S+\.dir)\n", entry)
    files = {from_root(str(place), str(path)): path for path in place.rglob("*") if path.is_file()} if recorded else {}
    return bool(recorded and folder_hash({name: digest_of(path) for name, path in files.items()}) != recorded[1])


def path_from_root(item: Item) -> str:
    """Return the path of an input or output relative to the repository's root; outside of it, as in dvc.yaml."""
    name = from_root(item.repo.root_dir, item.fs_path)
    return item.fs_path if name.startswith("../") and os.path.isabs(item.def_path) else name


def _identity(path: str) -> _Identity | None:
    try:
        info = os.stat(path)
    except OSError:
        return None
    return info.st_dev, info.st_ino


def digest_of(path: str | Path, kind: str = "md5") -> str:
    """Return the digest of a file's bytes, or why it cannot be read."""
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, kind).hexdigest()
    except OSError as error:
        return f"unreadable ({error.strerror})"
