"""Have a project check its own files before any work, and remember what is valid."""

from pathlib import Path

from dvcfleet.disk import write_durably
from dvcfleet.dvc_adapter.protocols import Repo
from dvcfleet.errors import UserError
from dvcfleet.project import project_of
from dvcfleet.repository import state_folder
from dvcfleet.terminal.failures import is_mistake


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
