"""Remove incomplete files of a killed run, before the next run reads them.

Nearly all files are written under a temporary name first, and a kill leaves only that one: mostly harmless, unless a
stage reads the whole folder. If the machine crashed, complete files may have lost their content too.
DVC's cache may be shared with other users and machines: only this workspace's own files are removed there.
"""

import hashlib
import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from dvcfleet.dvc_adapter.run_cache import run_cache_folder, temporary_mark

if TYPE_CHECKING:
    from dvc.repo import Repo

_TEMPORARY = re.compile(r"\.[A-Za-z0-9_-]{22}\.tmp")  # as DVC names them
_HASH = re.compile(r"\b[0-9a-f]{32}(?:\.dir)?\b")
_BOOT = Path("/proc/sys/kernel/random/boot_id")


@contextmanager
def crash_recovery(repo: "Repo", state: Path) -> Iterator[None]:
    """Clean up after a killed run, and mark in the folder `state` that a run is active until the block ends.

    Only the holder of the repository's write lock may call this.
    """
    note = state / "at-work"
    if note.exists():
        _remove_own_temporaries(repo)
        _remove_temporaries_beside_outputs(repo)
        if note.read_text() != _boot():
            _remove_torn_objects(repo, state, note.stat().st_mtime)
    note.write_text(_boot())
    try:
        yield
    finally:
        note.unlink(missing_ok=True)


def _remove_own_temporaries(repo: "Repo") -> None:
    """Remove this workspace's temporary files from DVC's run cache."""
    for path in Path(run_cache_folder(repo)).glob(f"{temporary_mark(repo)}*.tmp"):
        path.unlink(missing_ok=True)


def _remove_temporaries_beside_outputs(repo: "Repo") -> None:
    """Remove DVC's temporary files next to this workspace's outputs, and inside outputs that persist."""
    folders = set()
    for out in repo.index.outs:
        if out.protocol == "local" and out.is_in_repo:
            folders.add(os.path.dirname(out.fs_path))
            folders.update(folder for folder, _, _ in os.walk(out.fs_path) if out.persist)
    for folder in filter(os.path.isdir, folders):
        for name in filter(_TEMPORARY.fullmatch, os.listdir(folder)):
            os.unlink(os.path.join(folder, name))


def _remove_torn_objects(repo: "Repo", state: Path, since: float) -> None:
    """Remove objects from DVC's cache that were written after `since` and whose content does not match their name.

    In a cache outside the repository, only objects that this workspace refers to.
    """
    cache = Path(repo.cache.local.path)
    is_own = cache.is_relative_to(repo.root_dir)
    named = cache.glob("[0-9a-f][0-9a-f]/*") if is_own else _objects_named_by(repo, state, cache)
    for path in named:
        if path.is_file() and path.stat().st_ctime >= since and _md5(path) != _named(path):
            path.unlink()


def _objects_named_by(repo: "Repo", state: Path, cache: Path) -> list[Path]:
    """Return the cache paths of all objects that dvc.lock, .dvc files and the journal refer to."""
    stages = {Path(stage.path) for stage in repo.index.stages}
    sources = [state / "journal", *stages, *(path.with_suffix(".lock") for path in stages)]
    texts = [path.read_text(encoding="utf-8", errors="replace") for path in sources if path.is_file()]
    hashes = {found for text in texts for found in _HASH.findall(text)}
    for folder in [each for each in hashes if each.endswith(".dir")]:
        listing = cache / folder[:2] / folder[2:]
        if listing.is_file() and _md5(listing) == _named(listing):
            hashes.update(entry["md5"] for entry in json.loads(listing.read_text()))
    return [cache / each[:2] / each[2:] for each in sorted(hashes)]


def _named(path: Path) -> str:
    return path.parent.name + path.name.removesuffix(".dir")


def _md5(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "md5").hexdigest()


def _boot() -> str:
    """Return the id of the machine's current boot; empty if the system has none."""
    return _BOOT.read_text().strip() if _BOOT.exists() else ""
