"""What of DVC's cache nothing that is kept needs: objects, and entries of the run cache that restore nothing then."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from dvcfleet.dvc_adapter.internals import under_git
from dvcfleet.dvc_adapter.objects import listing_at
from dvcfleet.dvc_adapter.protocols import Repo
from dvcfleet.dvc_adapter.run_cache import entry_at, entry_files, entry_hash
from dvcfleet.git import git_if_any


def used_hashes(repo: Repo, commits: Iterable[str] | None) -> set[str]:
    """Return what a repository uses, as `dvc gc` sees it: the workspace, branches, tags, and these other commits.

    None: the workspace alone. Raises DVC's error if it cannot read one of them.
    """
    scopes: dict[str, Any] = {}
    if commits is not None and under_git(repo) and not repo.scm.no_commits:
        scopes = {"all_branches": True, "all_tags": True, "revs": [repo.get_rev(), *commits]}
    used = repo.used_objs(**scopes)
    return {each.value for hashes in used.values() for each in hashes}


def hashes_of(repo: Repo, entries: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Return the hashes of all that entries of a dvc.lock read and wrote, folders with their files."""
    for entry in entries:
        for item in (*entry.get("deps", ()), *entry.get("outs", ())):
            if value := item.get("md5"):
                yield value
                yield from (listing_at(Path(repo.cache.local.oid_to_path(value))) or {}).values()


def unused_objects(repo: Repo, used: Collection[str]) -> list[Path]:
    """List the objects of DVC's cache that are not used, listings of folders first."""
    objects = Path(repo.cache.local.path).glob("[0-9a-f][0-9a-f]/*")
    unused = (path for path in objects if path.is_file() and path.parent.name + path.name not in used)
    return sorted(unused, key=lambda path: (path.suffix != ".dir", path))


def unused_runs(
    repo: Repo, objects: Collection[Path], entries: Iterable[Mapping[str, Any]], since: datetime
) -> list[Path]:
    """List the entries of the run cache that lack an output, or will once these objects are removed.

    And those from before a time that are none of these of a dvc.lock.
    """
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
    """List the folders of the other git worktrees of a repository that have its DVC repository too."""
    inside = (git_if_any(root, "rev-parse", "--show-prefix") or "").strip()
    lines = (git_if_any(root, "worktree", "list", "--porcelain") or "").splitlines()
    folders = (Path(line.removeprefix("worktree "), inside) for line in lines if line.startswith("worktree "))
    return [folder for folder in folders if (folder / ".dvc").is_dir() and folder.resolve() != root.resolve()]
