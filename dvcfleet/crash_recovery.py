"""What a killed run left half made: taken away before the next one, which would take it for whole.

Nearly everything is written under another name first, and a kill leaves only that: mostly harmless, but not where a
stage reads the whole folder. When the machine itself went down, files that had their name may have lost their content.
"""

import hashlib
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dvc.repo import Repo

_ENTRY_NAME = re.compile("[0-9a-f]{64}")
_TEMPORARY = re.compile(r"\.[A-Za-z0-9_-]{22}\.tmp")  # as DVC names them
_BOOT = Path("/proc/sys/kernel/random/boot_id")


@contextmanager
def recovered(repo: "Repo", note: Path) -> Iterator[None]:
    """Take away what a killed run left. For the repository's one writer; `note` is the file that says it is at work."""
    _drop_half_entries(Path(repo.stage_cache.cache_dir))
    if note.exists():
        _drop_temporaries(repo)
        if note.read_text() != _boot():
            _drop_torn_objects(Path(repo.cache.local.path), note.stat().st_mtime)
    note.write_text(_boot())
    try:
        yield
    finally:
        note.unlink(missing_ok=True)


def _drop_half_entries(run_cache: Path) -> None:
    """Take out of DVC's run cache what is half written: it would be taken for the newest entry."""
    for folder in run_cache.glob("*/*"):
        entries = list(folder.iterdir())
        for entry in entries:
            if not _ENTRY_NAME.fullmatch(entry.name):
                entry.unlink()
        if not any(_ENTRY_NAME.fullmatch(entry.name) for entry in entries):
            folder.rmdir()


def _drop_temporaries(repo: "Repo") -> None:
    """Take away DVC's temporary files beside outputs, and in those that are kept from attempt to attempt."""
    folders = set()
    for out in repo.index.outs:
        if out.protocol == "local":
            folders.add(os.path.dirname(out.fs_path))
            folders.update(folder for folder, _, _ in os.walk(out.fs_path) if out.persist)
    for folder in filter(os.path.isdir, folders):
        for name in filter(_TEMPORARY.fullmatch, os.listdir(folder)):
            os.unlink(os.path.join(folder, name))


def _drop_torn_objects(cache: Path, since: float) -> None:
    """Take objects out of DVC's cache that came there since, and whose content is not what their name says."""
    for path in cache.glob("[0-9a-f][0-9a-f]/*"):
        if path.is_file() and path.stat().st_ctime >= since and _md5(path) != _named(path):
            path.unlink()


def _named(path: Path) -> str:
    return path.parent.name + path.name.removesuffix(".dir")


def _md5(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "md5").hexdigest()


def _boot() -> str:
    """Name the machine's present life; nothing where the system does not number them."""
    return _BOOT.read_text().strip() if _BOOT.exists() else ""
