"""DVC's repositories: git, and what DVC keeps open or cached while a run is active."""

import os
import sqlite3
from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

from dvcfleet.dvc_adapter.internals import otherwise, under_git
from dvcfleet.dvc_adapter.protocols import Repo
from dvcfleet.fast_paths import no_shortcut
from dvcfleet.git import GitError, git, git_if_any


@lru_cache(maxsize=1)
def tracked_files(repo: Repo) -> tuple[str, ...]:
    """Return the files that git tracked when this was first asked of the opened repository.

    Without a git program, or if it refuses, git's index is read as DVC reads it.
    """
    if not under_git(repo):
        return ()
    root = repo.scm.root_dir
    names = git_if_any(root, "ls-files", "-z")
    if names is not None:
        return tuple(os.path.join(root, name) for name in names.split("\0")[:-1])
    return tuple(os.path.join(root, os.fsdecode(name)) for name in repo.scm.dulwich.repo.open_index())


@lru_cache(maxsize=1)
def tracked_paths(repo: Repo) -> frozenset[str]:
    """Return the files that git tracked when this was first asked of the opened repository, and their folders."""
    files = map(Path, tracked_files(repo))
    return frozenset(str(path) for file in files for path in (file, *file.parents))


def is_committed(repo: Repo, path: str) -> bool:
    """Tell whether git has a file or folder as it is now; False if there is no git program to ask."""
    if not under_git(repo) or path not in tracked_paths(repo):
        return False
    return git_if_any(repo.scm.root_dir, "status", "--porcelain", "--ignored", "--", path) == ""


def git_refusal(repo: Repo) -> str | None:
    """Return why no git program works in a repository that is under git; None if one does, or if it is not."""
    try:
        if under_git(repo):
            git(repo.scm.root_dir, "rev-parse", "--git-dir")
    except GitError as error:
        return str(error)
    return None


def unmodified(repo: Repo, paths: Collection[str]) -> set[str]:
    """Return which of these tracked files are as in git's index; none if there is no git program to ask."""
    if not paths or not under_git(repo):
        return set()
    root = repo.scm.root_dir
    changed = git_if_any(root, "diff", "--name-only", "--no-ext-diff", "-z", "--", ":/")
    names = None if changed is None else {os.path.join(root, name) for name in changed.split("\0")}
    return set() if names is None else {path for path in paths if path not in names}


def forget_index(repo: Repo) -> None:
    """Make DVC reread dvc.yaml, dvc.lock and .dvcignore."""
    for name in ("index", "dvcignore"):
        vars(repo).pop(name, None)


def _open_git_again(repo: Repo) -> None:
    from dvc.scm import SCM

    repo.scm_context.scm = vars(repo)["scm"] = SCM(repo.root_dir)


@otherwise("writing .gitignore files", _open_git_again)
def forget_ignored(repo: Repo) -> None:
    """Make DVC reread .gitignore files."""
    repo.scm._reset()


@otherwise("noting links", lambda repo: no_shortcut())
def links_open(repo: Repo) -> AbstractContextManager[Any]:
    """Keep DVC's table of links open: DVC closes it after each entry, and the last close checkpoints its journal."""
    connection = sqlite3.connect(os.path.join(repo.state.links.directory, "cache.db"))
    connection.execute("SELECT COUNT(*) FROM sqlite_master").fetchone()
    return closing(connection)


@contextmanager
def as_copies(repo: Repo) -> Iterator[None]:
    """Make DVC copy files out of its cache instead of linking them."""
    before = repo.cache.local.cache_types
    repo.cache.local.cache_types = ["copy"]
    try:
        yield
    finally:
        repo.cache.local.cache_types = before


def experiment_ref(commit: str, name: str) -> str:
    """Return the git reference under which DVC looks for an experiment on top of a commit."""
    return f"refs/exps/{commit[:2]}/{commit[2:]}/{name}"
