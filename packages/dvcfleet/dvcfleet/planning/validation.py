"""A project's checks of its own files before any work, and outputs of stages that it predicts without running them."""

import hashlib
import os
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from pathlib import Path

from dvcfleet.disk import is_in, write_durably
from dvcfleet.dvc_adapter.objects import folder_hash
from dvcfleet.dvc_adapter.protocols import Dependency, Repo, Stage
from dvcfleet.errors import UserError
from dvcfleet.project import project_of
from dvcfleet.repository import state_folder
from dvcfleet.terminal.failures import is_mistake


def hash_predictor(
    root: str, predict_outputs: Callable[[str], Mapping[str, str] | None]
) -> Callable[[Dependency, Iterable[str]], str | None]:
    """Return a function for the DVC hash of a dependency after stages have run; None if it cannot be predicted.

    `predict_outputs` is called once per stage; it returns the texts that the stage will write, by path relative to
    `root`.
    """
    texts_of = cache(predict_outputs)

    def hash_of(dep: Dependency, writers: Iterable[str]) -> str | None:
        predictions = [texts_of(writer) for writer in writers]
        texts = {name: text for each in predictions for name, text in (each or {}).items()}
        if None in predictions:
            return None
        path = os.path.relpath(dep.fs_path, root)
        if path in texts:
            return _md5(texts[path])
        listing = {os.path.relpath(name, path): _md5(text) for name, text in texts.items() if is_in(name, path)}
        return folder_hash(listing) if listing else None

    return hash_of


def _md5(text: str) -> str:
    return hashlib.md5(text.encode()).hexdigest()


class ProjectError(UserError):
    """A mistake in a project's own files, found before any work."""


def validate(repo: Repo) -> None:
    """Have the repository's project check its own files; raise ProjectError."""
    try:
        project_of(Path(repo.root_dir)).validate(repo)
    except Exception as error:
        if not is_mistake(error):
            raise
        raise ProjectError(str(error)) from error


def is_validated(repo: Repo) -> bool:
    """Tell whether an earlier run found the project's files valid and they have not changed since."""
    digest, note = project_of(Path(repo.root_dir)).digest(), _note(repo)
    return not digest or (note.is_file() and note.read_bytes() == digest.encode())


def note_validated(repo: Repo) -> None:
    """Remember that the project's files in their present state are valid."""
    digest, note = project_of(Path(repo.root_dir)).digest(), _note(repo)
    if not note.is_file() or note.read_bytes() != digest.encode():
        write_durably(note, digest)


def _note(repo: Repo) -> Path:
    return state_folder(repo) / "validated"


def check_letter_case(stages: Iterable[Stage]) -> None:
    """Refuse outputs whose paths differ in letter case alone, on a file system that takes them for one.

    Such are exFAT, FAT, NTFS, and folders of macOS and Windows in a container: the stages would overwrite each other's
    outputs. Raises ProjectError.
    """
    makers = {out.fs_path: stage.addressing for stage in stages for out in stage.outs if out.protocol == "local"}
    spelled = {path.lower(): path for path in makers}
    for path, maker in makers.items():
        for part in (path, *map(str, Path(path).parents)):
            other = spelled.get(part.lower(), part)
            if other != part and _ignores_case(Path(path)):
                outs = f"{os.path.relpath(path)} of {maker} and {os.path.relpath(other)} of {makers[other]}"
                raise ProjectError(f"{outs} are one file here: the file system ignores letter case; rename one of them")


def _ignores_case(path: Path) -> bool:
    """Tell by names next to a path, or above it, whether its file system ignores letter case."""
    for folder in path.parents:
        names = os.listdir(folder) if folder.is_dir() else []
        for name in names:
            if name.swapcase() not in names:
                return (folder / name.swapcase()).exists()
    return False
