"""Check an archive with nothing but the file, and restore it."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import BinaryIO

from dvcfleet.git import GitError, git, own_environment
from dvcfleet.lineage.findings import Finding
from dvcfleet.lineage.steps import Lineage
from dvcfleet.paths import overlap
from dvcfleet.repository import opened
from flows.archive import BRANCH, WORKSPACE, outputs_kept
from flows.archive_form import BUNDLE, FILES, OBJECTS, check_form, copy_bytes, read_members
from merganser.errors import InputError
from merganser.outputs import new_folder
from tasks.tracking import follow_artifacts


def restore(path: Path, folder: Path) -> list[str]:
    """Make the archived repository in a new folder, whole or not at all; return what there is to say.

    Raises InputError for an archive that is not as it was written, or that would write elsewhere.
    """
    if found := check_archive(path):
        more = f", and {len(found) - 1} more" if len(found) > 1 else ""
        raise InputError(f"{path}: not restored: {found[0]}{more}")
    with new_folder(folder) as partial:
        has_data = _restore(path, partial)
    follow_artifacts(folder)
    if has_data:
        return [f"{folder}: as it was archived, on the branch comparison; `merganser run` there finds nothing to do"]
    return [f"{folder}: as it was archived, without models and data; `merganser run` there makes them again"]


def check_archive(path: Path) -> list[Finding]:
    """Read every byte of an archive; return what differs from what was written. Raises InputError if it is no file."""
    if not path.is_file():
        raise InputError(f"{path}: no such file; `merganser archive {path}` writes one")
    return check_form(path)


@contextmanager
def restored(path: Path) -> Iterator[tuple[Path, bool]]:
    """Restore an archive in which nothing was found to a scratch folder, in TMPDIR; say whether it has data."""
    with TemporaryDirectory(prefix="merganser-archive-") as scratch:
        folder = Path(scratch, "comparison")
        folder.mkdir()
        has_data = _restore(path, folder)
        follow_artifacts(folder)
        yield folder, has_data


def leaves_out(lineage: Lineage, path: str) -> bool:
    """Tell whether an archive without data does not have a file."""
    return not any(overlap(path, kept.path) for kept in outputs_kept(lineage))


def _restore(path: Path, folder: Path) -> bool:
    """Write an archive's files into an empty folder, and put what DVC has into place; tell whether there is data."""
    cache = folder / ".dvc/cache/files/md5"
    has_data = False
    for name, size, is_executable, source in read_members(path):
        if name == BUNDLE:  # the first
            _checkout(source, size, folder)
            continue
        is_object = name.startswith(OBJECTS)
        place = cache / name.removeprefix(OBJECTS) if is_object else folder / name.removeprefix(FILES)
        has_data |= is_object
        if not place.parent.resolve().is_relative_to(folder.resolve()) or place.is_symlink():
            raise InputError(f"{path}: {name} would be written through a link; nothing is restored")
        place.parent.mkdir(parents=True, exist_ok=True)
        with place.open("wb") as out:
            copy_bytes(source, size, out)
        place.chmod(0o444 if is_object else 0o755 if is_executable else 0o644)
    if has_data:
        _put_into_place(folder)
    return has_data


def _checkout(source: BinaryIO, size: int, folder: Path) -> None:
    """Bring back the commit as HEAD, and the code as it was beside it: changed, removed or unknown to git."""
    environment = own_environment()
    try:
        with TemporaryDirectory() as scratch:
            bundle = Path(scratch, BUNDLE)
            with bundle.open("wb") as out:
                copy_bytes(source, size, out)
            git(folder, "init", "-q", "-b", BRANCH.rpartition("/")[2], environment=environment)
            refs = [f"{ref}:{ref}" for ref in (BRANCH, WORKSPACE)]
            fetch = ("fetch", "-q", "--no-tags", "--update-head-ok", str(bundle), *refs)
            git(folder, *fetch, environment=environment)
        git(folder, "read-tree", "--reset", "-u", WORKSPACE, environment=environment)
        git(folder, "reset", "-q", "--mixed", environment=environment)
        git(folder, "update-ref", "-d", WORKSPACE, environment=environment)
    except GitError as error:
        raise InputError(f"{BUNDLE}: git cannot restore the code: {error}") from error


def _put_into_place(folder: Path) -> None:
    """Have DVC put all outputs from the cache into the workspace, with a cache of its own whatever the settings say."""
    with opened(folder) as repo:
        is_elsewhere = not Path(repo.cache.local.path).resolve().is_relative_to(folder.resolve())
    if is_elsewhere:
        (folder / ".dvc/config.local").write_text("[cache]\n    dir = cache\n")
    with opened(folder) as repo:
        cache = repo.cache.local
        cache.cache_types = [kind for kind in cache.cache_types if kind != "symlink"] or ["copy"]  # the folder moves
        for out in repo.index.outs:
            if out.use_cache and out.hash_info:
                out.checkout(force=True)
