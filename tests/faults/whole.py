"""Whether a repository holds whole and right files, from their bytes alone: DVC is not asked."""

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import yaml

# Times and numbers of MLflow's runs, and what shows them.
IMPURE = ("data/profiles/", "data/records/", "report", "metrics.json")


def content(folder: Path) -> dict[str, str]:
    """The digests of all files of the workspace: sources, outputs, dvc.lock and .gitignore files."""
    hidden = {".git", ".dvc", ".dvcfleet"}
    files = [path for path in folder.rglob("*") if path.is_file() and not hidden & set(path.relative_to(folder).parts)]
    return {str(path.relative_to(folder)): _md5(path) for path in sorted(files)}


def entries(folder: Path) -> dict[str, Any]:
    """The entries of dvc.lock; none where there is no dvc.lock."""
    lock = folder / "dvc.lock"
    return dict(yaml.safe_load(lock.read_text())["stages"]) if lock.exists() else {}


def finished(folder: Path) -> set[str]:
    """The stages that dvc.lock or the journal knows to have ended."""
    journal = folder / ".dvcfleet/journal"
    lines = journal.read_text().splitlines(keepends=True) if journal.exists() else []
    return set(entries(folder)) | {json.loads(line)["name"] for line in lines if line.endswith("\n")}


def assert_cache_is_whole(folder: Path) -> None:
    """Each object in DVC's cache has the content that its name says."""
    for path in (folder / ".dvc/cache/files/md5").glob("*/*"):
        if path.is_file() and not path.name.endswith(".tmp"):
            assert _md5(path) == path.parent.name + path.name.removesuffix(".dir"), path


def digest_of(path: Path) -> str:
    """What DVC calls the hash of a file or folder."""
    if path.is_file():
        return _md5(path)
    files = sorted((file.relative_to(path).as_posix(), _md5(file)) for file in path.rglob("*") if file.is_file())
    listed = [{"md5": digest, "relpath": name} for name, digest in files]
    return hashlib.md5(json.dumps(listed).encode()).hexdigest() + ".dir"


def is_pure(path: str) -> bool:
    """Whether an output is a pure function of its stage's inputs."""
    return not path.startswith(IMPURE)


def remove(path: Path) -> None:
    """Take away a file or folder, if it is there."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _md5(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "md5").hexdigest()
