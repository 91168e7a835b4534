"""Unused data in DVC's cache: objects, and run-cache entries that cannot restore anything without them."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from dvcfleet.dvc_adapter.internals import under_git
from dvcfleet.dvc_adapter.lockfiles import parse_dvc_file, parse_lock_file
from dvcfleet.dvc_adapter.objects import listing_at
from dvcfleet.dvc_adapter.protocols import Repo
from dvcfleet.dvc_adapter.run_cache import entry_at, entry_files, entry_hash
from dvcfleet.git import git_if_any


def used_hashes(repo: Repo, commits: Collection[str] | None) -> tuple[set[str], list[str]]:
    """Return the hashes that a repository uses, as `dvc gc` sees it, and the commits that DVC cannot read.

    Those of the workspace and of these commits, which are whole ids; None: of the workspace alone. Raises DVC's error
    if it cannot read the workspace. What an unreadable commit uses is not among the hashes: see `recorded_at`.
    """
    readable, unreadable = list(commits or () if under_git(repo) and not repo.scm.no_commits else ()), []
    while isinstance(used := _used_objects(repo, readable), str):
        readable.remove(used)
        unreadable.append(used)
    return {each.value for hashes in used.values() for each in hashes}, unreadable


def _used_objects(repo: Repo, commits: list[str]) -> Mapping[Any, Any] | str:
    """Return the objects that the workspace and commits use, or the first of the commits that DVC cannot read."""
    from dvc.exceptions import RevCollectionError

    try:
        return dict(repo.used_objs(revs=commits))
    except RevCollectionError as error:
        if error.rev not in commits:  # the workspace
            raise
        return str(error.rev)


def recorded_at(root: Path, commit: str) -> Iterator[Mapping[str, Any]]:
    """Yield the entries of each dvc.lock of a commit, and the content of each .dvc file as an entry."""
    listed = git_if_any(root, "ls-tree", "-r", "-z", "--name-only", commit) or ""
    for name in listed.split("\0"):
        text = git_if_any(root, "show", f"{commit}:./{name}") if name.endswith((".dvc", "dvc.lock")) else None
        if Path(name).name == "dvc.lock":
            yield from parse_lock_file(text or "", f"{commit}:{name}").values()
        elif text:
            yield parse_dvc_file(text, f"{commit}:{name}")


def hashes_of(repo: Repo, entries: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Return the hashes of all inputs and outputs of dvc.lock entries, folders with their files."""
    for entry in entries:
        for item in (*entry.get("deps", ()), *entry.get("outs", ())):
            if value := item.get("md5"):
                yield value
                yield from (listing_at(Path(repo.cache.local.oid_to_path(value))) or {}).values()


def unused_objects(repo: Repo, used: Collection[str]) -> list[Path]:
    """List unused objects of DVC's cache, lists of folders first."""
    objects = Path(repo.cache.local.path).glob("[0-9a-f][0-9a-f]/*")
    unused = (path for path in objects if path.is_file() and path.parent.name + path.name not in used)
    return sorted(unused, key=lambda path: (path.suffix != ".dir", path))


def unused_runs(
    repo: Repo, objects: Collection[Path], entries: Iterable[Mapping[str, Any]], since: datetime
) -> list[Path]:
    """List run-cache entries that lack an output or will without these objects, and older ones in no dvc.lock."""
    gone = {path.parent.name + path.name for path in objects}
    kept = set()
    for entry in entries:
        with suppress(ValueError):  # of a value that the run cache does not take
            kept.add(entry_hash(dict(entry)))

    def is_there(value: str) -> bool:
        return value not in gone and Path(repo.cache.local.oid_to_path(value)).exists()

    return [
        path
        for path in entry_files(repo)
        if (path.name not in kept and path.stat().st_mtime < since.timestamp())
        or not all(is_there(out["md5"]) for out in (entry_at(path) or {}).get("outs", ()) if "md5" in out)
    ]


def dvc_cache_folder(repo: Repo) -> Path:
    """Return the folder of DVC's cache."""
    return Path(repo.cache.local.path)


def worktrees_of(root: Path) -> list[Path]:
    """List the folders of a repository's other git worktrees that also have its DVC repository."""
    inside = (git_if_any(root, "rev-parse", "--show-prefix") or "").strip()
    lines = (git_if_any(root, "worktree", "list", "--porcelain") or "").splitlines()
    folders = (Path(line.removeprefix("worktree "), inside) for line in lines if line.startswith("worktree "))
    return [folder for folder in folders if (folder / ".dvc").is_dir() and folder.resolve() != root.resolve()]
