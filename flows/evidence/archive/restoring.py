"""Check an archive without anything but the file, and restore it."""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from dvcfleet.disk import overlap, sync_file_systems
from dvcfleet.errors import UserError
from dvcfleet.git import own_environment
from dvcfleet.lineage.steps import Finding, Lineage
from dvcfleet.project import Project, hooks_given
from dvcfleet.repository import opened
from merganser.errors import InputError, some
from merganser.flows.evidence.archive.files import (
    CONFIG,
    check_dvc_files,
    check_sizes,
    files_of_dvc,
    keep_harmless_settings,
    refuse_other_projects,
    why_elsewhere,
)
from merganser.flows.evidence.archive.form import BUNDLE, FILES, OBJECTS, check_form, copy_bytes, read_members
from merganser.flows.evidence.archive.mlflow_store import take_in_store
from merganser.flows.evidence.archive.stages import check_out_code, check_places, check_stages_inside, quiet_git
from merganser.flows.evidence.archive.writing import outputs_kept
from merganser.outputs import new_folder
from merganser.tasks.tracking import STORE, follow_artifacts

CACHE = ".dvc/cache/files/md5/"


def restore(path: Path, folder: Path) -> list[str]:
    """Restore an archive, whole or not at all; return what to tell the user. Raises InputError if it was changed."""
    if findings := check_archive(path):
        more = f", and {len(findings) - 1} more" if len(findings) > 1 else ""
        raise InputError(f"{path}: not restored: {findings[0]}{more}")
    with new_folder(folder) as partial, _alone():
        has_data, dropped = _restore(path, partial)
    follow_artifacts(folder)
    sync_file_systems([folder])  # else SQLite's journal may come back after a power cut, and undo that
    left = f"left out of {CONFIG}, which may lead elsewhere: {some(dropped)}; `git diff {CONFIG}` shows it"
    what = "" if has_data else ", without models and data"
    then = "finds nothing to do" if has_data else "makes them again"
    lines = [f"{folder}: as it was archived, on the branch comparison{what}; `merganser run` there {then}"]
    return [*lines, left] if dropped else lines


def check_archive(path: Path) -> list[Finding]:
    """Read every byte of an archive; return differences from what was written. Raises InputError if it is no file."""
    if not path.is_file():
        raise InputError(f"{path}: no such file; `merganser archive {path}` writes one")
    return check_form(path)


@contextmanager
def restored_archive(path: Path) -> Iterator[tuple[Path, bool, list[str]]]:
    """Restore a checked archive to a scratch folder in TMPDIR.

    Yields the folder, whether it has data, and the DVC settings that were left out. Inside the block git and DVC
    ignore this machine's settings and write to the scratch folder alone. MLflow reads the archive's store, if there
    is one.
    """
    with TemporaryDirectory(prefix="merganser-archive-") as scratch, _alone():
        folder = Path(scratch, "comparison")
        folder.mkdir()
        has_data, dropped = _restore(path, folder)
        if (folder / STORE).is_file():  # the archive's store, not the server of whoever checks it
            os.environ.pop("MLFLOW_TRACKING_URI", None)
        yield folder, has_data, dropped


@contextmanager
def _alone() -> Iterator[None]:
    """Keep git and DVC from this machine's settings, and from writing outside the scratch folder."""
    with TemporaryDirectory(prefix="merganser-dvc-") as scratch:
        places = {f"DVC_{name}_DIR": scratch for name in ("SITE_CACHE", "GLOBAL_CONFIG", "SYSTEM_CONFIG")}
        before, alone = dict(os.environ), own_environment() | quiet_git() | places
        try:
            _set_variables(alone)
            yield
        finally:
            _set_variables(before)


def _set_variables(variables: Mapping[str, str]) -> None:
    for name in os.environ.keys() - variables.keys():
        del os.environ[name]
    os.environ.update(variables)


def leaves_out(has_data: bool) -> Callable[[Lineage, str], bool]:
    """Return a function that tells whether an archive lacks a file: one outside the repository, or left-out data."""

    def is_left_out(lineage: Lineage, path: str) -> bool:
        kept = outputs_kept(lineage)
        return bool(why_elsewhere(path)) or not (has_data or any(overlap(path, each.path) for each in kept))

    return is_left_out


def _restore(path: Path, folder: Path) -> tuple[bool, list[str]]:
    """Write an archive's files into an empty folder, and check its outputs out with DVC.

    Returns whether there is data, and the DVC settings that were left out. Raises InputError, with nothing written
    outside the folder, if the archive would write, read or run anything elsewhere.
    """
    try:
        return _write(path, folder), _put_into_place(folder)
    except (UserError, InputError) as error:
        raise InputError(f"{path}: not restored: {error}") from error


def _write(path: Path, folder: Path) -> bool:
    """Write an archive's code, files and objects into an empty folder; return whether it has data."""
    has_data = False
    for number, (name, size, is_executable, source) in enumerate(read_members(path)):
        if (number == 0) != (name == BUNDLE):
            raise InputError(f"{name}: not in its place, after {BUNDLE}")
        if name == BUNDLE:
            check_out_code(source, size, folder)
            continue
        is_object = name.startswith(OBJECTS)
        has_data |= is_object
        with _place_of(name, folder).open("xb" if is_object else "wb") as out:
            copy_bytes(source, size, out)
            os.fchmod(out.fileno(), 0o444 if is_object else 0o755 if is_executable else 0o644)
    return has_data


def _place_of(name: str, folder: Path) -> Path:
    """Return a member's place in an existing folder; raise InputError if a link leads to it."""
    inside = f"{CACHE}{name.removeprefix(OBJECTS)}" if name.startswith(OBJECTS) else name.removeprefix(FILES)
    place = folder / inside
    try:
        for ancestor in (place, *place.parents):
            if ancestor == folder:
                break
            if ancestor.is_symlink():
                raise InputError(f"{name}: would be written through a link")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.unlink(missing_ok=True)
    except OSError as error:
        raise InputError(f"{name}: cannot be written ({error.strerror})") from error
    return place


def _put_into_place(folder: Path) -> list[str]:
    """Check out all outputs; return the DVC settings left out. Raises InputError for anything that leads elsewhere."""
    refuse_other_projects(folder)
    dropped = keep_harmless_settings(folder)
    check_dvc_files(folder, files_of_dvc(folder))
    has_data = (folder / CACHE).is_dir()
    if has_data:  # a cache of its own, whatever the settings of this machine say
        (folder / ".dvc/config.local").write_text("[cache]\n    dir = cache\n", encoding="utf-8")
    with hooks_given(folder, Project()), opened(folder) as repo:  # an earlier version's may not be there
        check_stages_inside(repo)
        check_places(repo, has_data)
        cache = repo.cache.local
        cache.cache_types = [kind for kind in cache.cache_types if kind != "symlink"] or ["copy"]  # the folder moves
        for out in repo.index.outs if has_data else ():
            if out.use_cache and out.hash_info:
                out.checkout(force=True)
    check_sizes(folder)
    take_in_store(folder)
    return dropped
