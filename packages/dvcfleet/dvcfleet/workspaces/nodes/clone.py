"""A node's clone of the repository: its creation, its commit, its locks, and the run's parameter files in it."""

import fcntl
import hashlib
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dvcfleet.disk import sync_file_systems
from dvcfleet.dvc_adapter.internals import under_git
from dvcfleet.dvc_adapter.objects import in_cache, is_near_output
from dvcfleet.dvc_adapter.protocols import Repo
from dvcfleet.dvc_adapter.repositories import tracked_paths
from dvcfleet.errors import UserError, some
from dvcfleet.repository import STATE_FOLDER, opened, write_lock

NODE_VARIABLE = "DVCFLEET_NODE"
MAKE_NODE = "dvcfleet node init"
# Says which clone's run a node works for.
RUN_FILE = f"{STATE_FOLDER}/node/run"
_LISTED = 10


def make_node(folder: Path) -> Path:
    """Mark the clone around a folder as a node, which runs may change as they need; return its root.

    Raises UserError if the clone holds work that neither git nor DVC's cache has: a node would delete it.
    """
    with opened(folder) as repo, write_lock(repo):
        if commit_for_nodes(repo) is None:
            raise UserError(f"{repo.root_dir}: not a git repository; a node is a clone made by git")
        unsaved = sorted(set(_unsaved(repo)))
        if unsaved:
            raise UserError(
                f"{repo.root_dir}: a node may overwrite or delete files that neither git nor DVC's cache has: "
                f"{some(unsaved, _LISTED)}; make a fresh clone for the node, or commit these first"
            )
        root = Path(repo.root_dir).resolve()
        node_folder(root).mkdir(exist_ok=True)
        _marker(root).write_text(str(root), encoding="utf-8")
        sync_file_systems([root])
        return root


def is_node(root: Path) -> bool:
    """Tell whether a clone was made a node at this path: a copy of a node is not a node."""
    return _marker(root).is_file() and _marker(root).read_text(encoding="utf-8") == str(root.resolve())


def node_root() -> Path:
    """Return the folder that a worker serves: DVCFLEET_NODE, else its current folder."""
    return Path(os.environ.get(NODE_VARIABLE) or os.getcwd()).absolute()


def check_node(root: Path) -> None:
    """Raise UserError unless the folder was made a node."""
    if not is_node(root):
        raise UserError(
            f"{root} is not a node; `{MAKE_NODE} {root}` makes it one, and {NODE_VARIABLE} names it where "
            "the worker starts elsewhere"
        )


def refuse_node(root: Path) -> None:
    """Raise UserError if the folder was made a node."""
    if is_node(root):
        raise UserError(
            f"{root} is a node: runs that use it may overwrite and delete its files; run in another clone, or remove "
            f"{node_folder(root)} to make it an ordinary one again"
        )


def node_folder(root: Path) -> Path:
    """Return the folder of a node's own records, which exists in every node."""
    return root / STATE_FOLDER / "node"


def commit_for_nodes(repo: Repo) -> str | None:
    """Return the repository's current commit; None outside git. Raises UserError before the first commit."""
    from dvc.scm import SCMError

    if not under_git(repo):
        return None
    try:
        return str(repo.get_rev())
    except SCMError as error:
        raise UserError(f"{repo.root_dir}: nothing is committed yet, and nodes must check out a commit") from error


def check_commit(repo: Repo, wanted: str | None) -> None:
    """Raise UserError unless the clone is at the run's commit."""
    commit = commit_for_nodes(repo)
    if commit != wanted:
        raise UserError(
            f"its checkout is at commit {commit or 'none'}, the run's at {wanted or 'none'}; "
            "check out that commit there, and run again"
        )


@contextmanager
def opened_clone(root: Path) -> Iterator[Repo]:
    """Open the clone as a DVC repository that waits for its lock."""
    from dvc.repo import Repo

    logging.getLogger("dvc").setLevel(logging.ERROR)
    with Repo(str(root), _wait_for_lock=True) as repo:
        yield repo


@contextmanager
def locked(repo: Repo) -> Iterator[None]:
    """Let only one stage of the node, and no `dvc` command, change DVC's state within the block."""
    # DVC polls its own lock only twice a second, so the node's stages queue on this one.
    with open(node_folder(Path(repo.root_dir)) / "lock", "a", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with repo.lock, repo.scm_context(quiet=True):
            yield


@contextmanager
def parameter_files(root: Path, texts: dict[str, str]) -> Iterator[None]:
    """Write the run's dvc.yaml, parameter files and RUN_FILE, and keep them unchanged while a stage runs.

    Stages of another run wait until the stages of this run have ended.
    """
    paths = {root / path: text for path, text in texts.items()}
    if any(".." in path.parts or not path.is_relative_to(root) for path in paths):
        raise UserError(f"it received files outside the repository: {', '.join(texts)}")
    with open(node_folder(root) / "parameters", "a", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        while any(not _holds(path, text) for path, text in paths.items()):
            fcntl.flock(file, fcntl.LOCK_EX)
            for path, text in paths.items():
                write_if_changed(path, text)
            fcntl.flock(file, fcntl.LOCK_SH)
        yield


@contextmanager
def only_attempt(root: Path, stage: str) -> Iterator[None]:
    """Wait for an earlier attempt of the stage, as of a run that was killed, which may still write the same outputs."""
    with open(node_folder(root) / f"{hashlib.md5(stage.encode()).hexdigest()}.lock", "a", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def write_if_changed(path: Path, text: str) -> None:
    """Replace a text file atomically, unless it already holds this text."""
    if _holds(path, text):
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f"{path.name}.{os.getpid()}.new")
    new.write_text(text, encoding="utf-8")
    new.replace(path)


def _holds(path: Path, text: str) -> bool:
    return path.is_file() and path.read_text(encoding="utf-8") == text


def _marker(root: Path) -> Path:
    return node_folder(root) / "made"


def _unsaved(repo: Repo) -> Iterator[str]:
    """Find what git has not committed, outputs that DVC's cache lacks, and other files in folders that stages read."""
    staged, unstaged, untracked = repo.scm.status()
    yield from (path for paths in staged.values() for path in paths)
    yield from (*unstaged, *untracked)
    for out in (out for out in repo.index.outs if out.protocol == "local" and out.exists):
        if out.changed_checksum() or (out.use_cache and not in_cache(out)):
            yield os.path.relpath(out.fs_path, repo.root_dir)
    outputs, tracked = repo.index.outs_trie, tracked_paths(repo)
    deps = [dep for stage in repo.index.stages for dep in stage.deps if dep.protocol == "local"]
    for folder in {dep.fs_path for dep in deps if outputs.has_subtrie(dep.fs.parts(dep.fs_path))}:
        for path in (os.path.join(parent, name) for parent, _, names in os.walk(folder) for name in names):
            if path in tracked or os.path.basename(path) == ".gitignore":
                continue
            if not is_near_output(repo, path):
                yield os.path.relpath(path, repo.root_dir)
