"""A node's clone of the repository: where it is, at what commit, who may touch it when, and the choices put into it."""

import fcntl
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from dvcfleet.errors import UserError

if TYPE_CHECKING:
    from dvc.repo import Repo

NODE_VARIABLE = "DVCFLEET_NODE"


def node_root(check: bool = True) -> Path:
    """Return the node's clone: DVCFLEET_NODE, else the worker's folder. Raises UserError if it is none."""
    root = Path(os.environ.get(NODE_VARIABLE) or os.getcwd()).absolute()
    if check and not (root / ".dvc").is_dir():
        raise UserError(
            f"{root} is no clone of the repository; start the node's worker in one, or name it in {NODE_VARIABLE}"
        )
    return root


def check_commit(repo: "Repo", wanted: str | None) -> None:
    """Raise UserError unless the clone is at the run's commit."""
    here = commit_for_nodes(repo)
    if here != wanted:
        raise UserError(
            f"its checkout is at commit {here or 'none'}, the run's at {wanted or 'none'}; "
            "check that one out there, and run again"
        )


def commit_for_nodes(repo: "Repo") -> str | None:
    """Return the commit that the repository is at; None outside git. Raises UserError before the first commit."""
    from dvc.scm import NoSCM, SCMError

    if isinstance(repo.scm, NoSCM):
        return None
    try:
        return str(repo.get_rev())
    except SCMError as error:
        raise UserError(f"{repo.root_dir}: nothing is committed yet, and nodes are told the commit") from error


@contextmanager
def opened_clone(root: Path) -> Iterator["Repo"]:
    """Open the clone as a DVC repository whose lock is waited for."""
    from dvc.repo import Repo

    logging.getLogger("dvc").setLevel(logging.ERROR)
    with Repo(str(root), _wait_for_lock=True) as repo:
        yield repo


@contextmanager
def locked(repo: "Repo") -> Iterator[None]:
    """Let one stage of the node at a time touch DVC's state, and no `dvc` command meanwhile."""
    with open(node_folder(Path(repo.root_dir)) / "lock", "a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with repo.lock, repo.scm_context(quiet=True):
            yield


@contextmanager
def claimed(root: Path) -> Iterator[None]:
    """Keep runs out of the clone while it serves as a node, and the other way round."""
    with open(node_folder(root).parent / "lock", "a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError("a run is at work in this very folder; a node needs a clone of its own") from None
        yield


@contextmanager
def chosen(root: Path, texts: dict[str, str]) -> Iterator[None]:
    """Have the run's choices in place; stages of a run with other choices wait until those of this one have ended."""
    paths = {root / path: text for path, text in texts.items()}
    if any(".." in path.parts or not path.is_relative_to(root) for path in paths):
        raise UserError(f"it was sent files outside the repository: {', '.join(texts)}")
    with open(node_folder(root) / "choices", "a") as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        while any(not path.is_file() or path.read_text(encoding="utf-8") != text for path, text in paths.items()):
            fcntl.flock(file, fcntl.LOCK_EX)
            for path, text in paths.items():
                put(path, text)
            fcntl.flock(file, fcntl.LOCK_SH)
        yield


def node_folder(root: Path) -> Path:
    """Return the folder of what the node keeps about itself, made if missing and hidden from git."""
    folder = root / ".dvcfleet" / "node"
    folder.mkdir(parents=True, exist_ok=True)
    ignore = folder.parent / ".gitignore"
    if not ignore.exists():
        ignore.write_text("*\n")
    return folder


def put(path: Path, text: str) -> None:
    """Write a text file whole, if it is not there already."""
    if path.is_file() and path.read_text(encoding="utf-8") == text:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f"{path.name}.{os.getpid()}.new")
    new.write_text(text, encoding="utf-8")
    new.replace(path)
