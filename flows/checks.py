"""Refuse a Merganser project's mistakes before any work; any other DVC repository is taken as it is."""

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

from flows.repository import state_folder
from merganser.errors import InputError

if TYPE_CHECKING:
    from dvc.repo import Repo

PARAMS = Path("params.yaml")


class ProjectError(InputError):
    """A mistake in a Merganser project, found before any work."""


def check_project(repo: "Repo") -> None:
    """Check params.yaml, and the headers of the models it names, in an opened repository; raises ProjectError."""
    if not is_project():
        return
    from merganser.params import load_params
    from merganser.preflight import check_sources

    try:
        check_sources(load_params(PARAMS), Path(), lambda path: _made(repo, path))
    except InputError as error:
        raise ProjectError(str(error)) from error


def is_checked(repo: "Repo") -> bool:
    """Tell whether a run has checked this params.yaml before: then there is nothing to refuse where nothing changed."""
    if not is_project():
        return True
    note = _note(repo)
    return note.is_file() and note.read_text() == _digest()


def note_checked(repo: "Repo") -> None:
    """Remember that params.yaml, as it stands, is in order."""
    if is_project():
        _note(repo).write_text(_digest())


def is_project() -> bool:
    """Tell whether the current folder is a Merganser project."""
    return PARAMS.is_file() and Path("tasks/merge.py").is_file()


def _note(repo: "Repo") -> Path:
    return state_folder(repo) / "checked"


def _digest() -> str:
    return hashlib.sha256(PARAMS.read_bytes()).hexdigest()


def _made(repo: "Repo", path: Path) -> bool:
    """Tell whether a stage's output lies at, in or above a path."""
    key = repo.fs.parts(str(path.absolute()))
    trie = repo.index.outs_trie
    return bool(trie.has_node(key) or trie.shortest_prefix(key))
