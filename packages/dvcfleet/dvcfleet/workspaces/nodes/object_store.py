"""The DVC remote as the store through which machines that share nothing else exchange inputs and outputs.

Files are transferred by DVC's own push and pull. This module adds waiting for an unreachable remote, and transfer of
single run cache entries, where DVC copies the whole run cache. It does not trust an object for its name: after a power
cut of the remote's machine, or a fault of its disk, the content may be another one. What is fetched is compared with
its hash, and what a push finds there with its size.
"""

import errno
import logging
import re
import tempfile
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from dvcfleet.dvc_adapter.lock_entries import yaml_text
from dvcfleet.dvc_adapter.objects import (
    cached_listing,
    forget_remote,
    in_cache,
    listing_error,
    object_size,
    remove_torn,
    remove_torn_of,
)
from dvcfleet.dvc_adapter.protocols import HashInfo, Output, Repo
from dvcfleet.dvc_adapter.run_cache import entry_hash, named_entry
from dvcfleet.errors import FailedError, UserError, some
from dvcfleet.repository import state_folder

if TYPE_CHECKING:
    from dvc.data_cloud import Remote


T = TypeVar("T")

# A remote that is not mounted looks like an empty remote: only a real one holds this file.
_MARK = "dvcfleet"
_WAITS_S = (1, 2, 4, 8, 15, *[30] * 19)
# Errors that waiting does not resolve.
_LASTING = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS})
_RUN_NAME = re.compile("[0-9a-f]{64}")


class MissingError(FailedError):
    """The DVC remote answers, but does not hold the requested object."""


def has_remote(repo: Repo) -> bool:
    """Tell whether the repository has a default DVC remote."""
    return bool(repo.config["core"].get("remote"))


class ObjectStore:
    """The repository's default DVC remote; `tell` is called with a line for each wait.

    All methods wait up to ten minutes for a remote that does not answer, and then raise its error. They raise UserError
    for a remote that stores files by version and not by content.
    """

    def __init__(self, repo: Repo, tell: Callable[[str], None]) -> None:
        self._repo, self._tell = repo, tell

    @cached_property
    def _remote(self) -> "Remote":
        # Not when this object is made, which stages of a node may do at once: DVC opens its data index here, and two
        # that create that database at the same time end in "database is locked".
        remote = self._repo.cloud.get_remote()
        if remote.fs.version_aware or remote.worktree:
            raise UserError(
                f"DVC remote {remote.name}: nodes need one that keeps files by their content; "
                "remove version_aware and worktree from its configuration, or choose another by `dvc remote default`"
            )
        return remote

    def open(self) -> None:
        """Write the marker file to a remote on first use, and check for it later."""
        known = state_folder(self._repo) / "remote"
        if known.exists() and known.read_text(encoding="utf-8") == self._mark:
            return self._patiently("answer", self._check_mark)
        self._patiently("be made ready", self._put_mark)
        known.write_text(self._mark, encoding="utf-8")

    def held(self, values: Collection[str]) -> set[str]:
        """Return the hashes that the remote holds; a folder counts if the remote holds all of its files."""
        return self._with_mark("list its files", lambda: set(self._remote.odb.oids_exist(values)) if values else set())

    def push(self, outs: Iterable[Output]) -> None:
        """Copy the outputs that the remote lacks from DVC's cache; a folder's listing last."""
        objects = _objects(outs)

        def push_all() -> None:
            there = objects - self._transfer("pushed", self._repo.cloud.push, objects)
            if self._remove_torn(there, objects):
                self._transfer("pushed", self._repo.cloud.push, objects)
            self._check_mark()

        self._with_mark("take outputs", push_all)

    def fetch(self, outs: Collection[Output]) -> None:
        """Copy the outputs that DVC's cache lacks into it. Raises MissingError if the remote also lacks one."""

        def fetch_all() -> None:
            for out in outs:
                remove_torn_of(out)
                if out.hash_info.isdir:
                    self._pull_listing(out.hash_info, str(out))
            torn = self._pull(_objects(outs))
            for out in outs:
                if not in_cache(out):
                    files = cached_listing(out) if out.hash_info.isdir else None
                    raise self._missing(str(out), [str(out.hash_info.value), *(files or {}).values()], torn)

        self._with_mark("give inputs", fetch_all)

    def fetch_listing(self, folder: HashInfo) -> None:
        """Copy the listing of an output folder into DVC's cache, without its files."""

        remove_torn(self._repo.cache.local, {str(folder.value): None})
        if not self._repo.cache.local.exists(folder.value):
            pull = partial(self._pull_listing, folder, f"the listing {folder.value}")
            self._with_mark("read the listing of a folder", pull)

    def find_run(self, key: str) -> dict[str, Any] | None:
        """Return the run cache's entry under a key, if the remote holds the entry's outputs too."""
        return self._with_mark("read its run cache", lambda: self._find_run(key))

    def save_run(self, key: str, entry: dict[str, Any]) -> None:
        """Add an entry to the remote's run cache, which must already hold its outputs."""
        fs = self._remote.fs
        path = fs.join(self._run_folder(key), entry_hash(entry))

        def save() -> None:
            with tempfile.TemporaryDirectory() as folder:
                text = Path(folder) / "entry"
                text.write_text(yaml_text(entry), encoding="utf-8")
                fs.makedirs(fs.parent(path), exist_ok=True)
                fs.put_file(str(text), path)
            self._check_mark()

        self._with_mark("write its run cache", save)

    def _find_run(self, key: str) -> dict[str, Any] | None:
        fs, folder = self._remote.fs, self._run_folder(key)
        if not fs.exists(folder):
            return None
        for path in sorted(fs.find(folder)):
            if not _RUN_NAME.fullmatch(fs.name(path)):
                continue
            with fs.open(path, "rb") as file:
                text = file.read().decode(errors="replace")
            entry = named_entry(text, path)
            if entry is None:
                continue
            values = {out["md5"] for out in entry.get("outs", [])}
            if len(self._remote.odb.oids_exist(values)) == len(values):
                return entry
        return None

    def _run_folder(self, key: str) -> str:
        # Where `dvc push --run-cache` puts it.
        return str(self._remote.fs.join(self._remote.path, "runs", key[:2], key))

    def _pull_listing(self, folder: HashInfo, what: str) -> None:
        try:
            torn = self._pull({folder})
        except listing_error():
            torn = {str(folder.value)}
        if not self._repo.cache.local.exists(folder.value):
            raise self._missing(what, [str(folder.value)], torn)

    def _pull(self, objects: set[HashInfo]) -> set[str]:
        """Fetch the objects that the remote holds; drop those whose content differs from their hash; return these."""
        # DVC takes a folder's files to be there if its listing is: one that is not is no reason to wait.
        self._transfer("fetched", self._repo.cloud.pull, objects, ignored=FileNotFoundError)
        return remove_torn(self._repo.cache.local, dict.fromkeys(str(each.value) for each in objects))

    def _transfer(
        self, done: str, move: Callable[..., Any], objects: set[HashInfo], ignored: type[Exception] | tuple[()] = ()
    ) -> set[HashInfo]:
        """Copy the objects that are not there yet, and return them."""
        if not objects:
            return set()
        with _logged_errors() as errors:
            moved, failed = move(objects)
        for error in errors:
            part = str(error.filename2 or "") if isinstance(error, OSError) else ""
            if part.endswith(".tmp"):  # which may fill the disk
                Path(part).unlink(missing_ok=True)
        for error in errors:
            if not isinstance(error, ignored):
                raise error
        if failed and not errors:
            raise FailedError(f"{len(failed)} files could not be {done}")
        return set(moved)

    def _remove_torn(self, there: Iterable[HashInfo], objects: Iterable[HashInfo]) -> bool:
        """Remove the objects `there` of another size than in the cache, and the listings among all that are pushed."""
        fs, path_of = self._remote.fs, self._remote.odb.oid_to_path
        sizes = {str(each.value): object_size(self._repo.cache.local, str(each.value)) for each in there}
        torn = {oid for oid, size in sizes.items() if size is not None and _size_in(fs, path_of(oid)) != size}
        if torn:
            # DVC takes a folder's files to be there if its listing is, and remembers that.
            for oid in torn | {str(each.value) for each in objects if each.isdir}:
                with suppress(FileNotFoundError):
                    fs.remove(path_of(oid))
            forget_remote(self._remote.odb)
        return bool(torn)

    def _missing(self, what: str, oids: Collection[str], torn: Collection[str]) -> FailedError:
        """Return the error for an output that was not fetched; set aside what is damaged, to be made again."""
        name, odb = self._remote.name, self._remote.odb
        lacking = {oid for oid in oids if not self._repo.cache.local.exists(oid)}
        if not lacking.difference(odb.oids_exist(lacking)).union(lacking.intersection(torn)):
            return FailedError(f"{what} could not be fetched, though the remote holds it")
        aside = []
        for path in (odb.oid_to_path(oid) for oid in oids if oid in torn or oid.endswith(".dir")):
            with suppress(FileNotFoundError):
                odb.fs.move(path, f"{path}.damaged")
                aside.append(f"{path}.damaged")
        if not aside:
            return MissingError(f"the DVC remote {name} does not hold {what} ({next(iter(oids))})")
        return MissingError(
            f"{what} is damaged or incomplete on the DVC remote {name}, and renamed there to {some(aside, 1)}; "
            "run the same command again: the stage that writes it runs again"
        )

    @property
    def _mark(self) -> str:
        return str(self._remote.fs.join(self._remote.path, _MARK))

    def _put_mark(self) -> None:
        if not self._remote.fs.exists(self._mark):
            self._remote.fs.makedirs(self._remote.path, exist_ok=True)
            with self._remote.fs.open(self._mark, "w") as file:
                file.write("Nodes exchange the inputs and outputs of their stages here.\n")

    def _check_mark(self) -> None:
        if not self._remote.fs.exists(self._mark):
            raise FailedError(f"there is no {_MARK} in it, as if it were not mounted")

    def _with_mark(self, what: str, action: Callable[[], T]) -> T:
        """Run an action that needs the remote, after checking that its marker file is there."""

        def check_and_act() -> T:
            self._check_mark()
            return action()

        return self._patiently(what, check_and_act)

    def _patiently(self, what: str, action: Callable[[], T]) -> T:
        """Run an action that needs the remote; while the remote is unreachable, wait and retry."""
        name = self._remote.name  # refuses at once a remote that nodes cannot use
        for wait_s in _WAITS_S:
            try:
                return action()
            except Exception as error:  # each remote's library raises its own errors
                if isinstance(error, MissingError) and self._answers():
                    raise
                if isinstance(error, OSError) and error.errno in _LASTING:
                    raise
                self._tell(f"waiting for the DVC remote {name} to {what}: {error}; next try in {wait_s} s")
            time.sleep(wait_s)
        return action()

    def _answers(self) -> bool:
        try:
            self._check_mark()
        except Exception:
            return False
        return True


def _objects(outs: Iterable[Output]) -> set[HashInfo]:
    """Return the hashes of all files of outputs, and of folders' listings, which are fetched if missing."""
    used: set[HashInfo] = set()
    for out in outs:
        # With `force`, DVC skips a folder whose listing it cannot get, instead of prompting at the terminal.
        used = used.union(*out.get_used_objs(force=True).values())
    return used


def _size_in(fs: Any, path: str) -> int | None:
    """Return the size of a remote's file; None if it is missing."""
    try:
        return int(fs.size(path))
    except FileNotFoundError:
        return None


@contextmanager
def _logged_errors() -> Iterator[list[Exception]]:
    """Collect the errors that DVC only logs if single files cannot be copied, in the place of its tracebacks."""
    errors: list[Exception] = []

    def collect(record: logging.LogRecord) -> bool:
        if record.exc_info and isinstance(record.exc_info[1], Exception):
            errors.append(record.exc_info[1])
        return False

    logger = logging.getLogger("dvc_data.hashfile.transfer")
    logger.addFilter(collect)
    try:
        yield errors
    finally:
        logger.removeFilter(collect)
