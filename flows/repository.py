"""Open a DVC repository and hold it: one writer at a time, DVC's own commands included."""

import fcntl
import json
import logging
import os
import sqlite3
import sys
import time
from collections.abc import Iterator
from contextlib import chdir, closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from flows.remains import cleared_up
from merganser.errors import InputError

if TYPE_CHECKING:
    from dvc.repo import Repo

STATE_FOLDER = ".merganser"


@contextmanager
def opened(path: Path) -> Iterator["Repo"]:
    """Open the DVC repository around `path`, with `path` as the current folder, as `dvc` itself would.

    Raises InputError where there is no DVC repository, and for what DVC finds wrong with it.
    """
    from dvc.exceptions import DvcException, NotDvcRepoError
    from dvc.repo import Repo

    if not path.is_dir():
        raise InputError(f"{path}: no such folder")
    logging.getLogger("dvc").setLevel(logging.ERROR)
    with chdir(path):
        try:
            with Repo() as repo:
                yield repo
        except NotDvcRepoError as error:
            raise InputError(f"{path}: not a DVC repository; `dvc init` makes one") from error
        except DvcException as error:
            raise InputError(str(error)) from error


def state_folder(repo: "Repo") -> Path:
    """Return `.merganser` in the repository's root, made if missing and hidden from git."""
    folder = Path(repo.root_dir) / STATE_FOLDER
    folder.mkdir(exist_ok=True)
    ignore = folder / ".gitignore"
    if not ignore.exists():
        ignore.write_text("*\n")
    return folder


def tracked_paths(repo: "Repo") -> frozenset[str]:
    """Return the files that git keeps, and their folders."""
    from dvc.scm import NoSCM

    if isinstance(repo.scm, NoSCM):
        return frozenset()
    root = repo.scm.root_dir
    files = [Path(root, os.fsdecode(name)) for name in repo.scm.dulwich.repo.open_index()]
    return frozenset(str(path) for file in files for path in (file, *file.parents))


@contextmanager
def held(repo: "Repo") -> Iterator[None]:
    """Keep every other writer out of the repository: another run, and any `dvc` command.

    Raises InputError that names the holder. The locks end with the process, also when it is killed.
    """
    with _run_lock(state_folder(repo) / "lock"):
        _lock_dvc(repo)
        try:
            _refuse_busy_paths(repo)
            with cleared_up(repo, state_folder(repo) / "at-work"), _links_open(repo):
                yield
        finally:
            repo.lock.unlock()


@contextmanager
def _links_open(repo: "Repo") -> Iterator[None]:
    """Keep DVC's table of links open: DVC closes it after each entry, and whoever closes it last folds its journal."""
    with closing(sqlite3.connect(Path(repo.state.links.directory) / "cache.db")) as connection:
        connection.execute("SELECT COUNT(*) FROM sqlite_master").fetchone()
        yield


@contextmanager
def _run_lock(path: Path) -> Iterator[None]:
    with open(path, "a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(_who_runs(file)) from None
        file.truncate(0)
        json.dump({"pid": os.getpid(), "since": time.strftime("%H:%M:%S on %Y-%m-%d")}, file)
        file.flush()
        try:
            yield
        finally:
            file.truncate(0)


def _who_runs(file: TextIO) -> str:
    file.seek(0)
    text = file.read()
    # The holder may be between taking the lock and writing its name.
    holder = json.loads(text) if text else {"pid": "unknown", "since": "just now"}
    return (
        f"another run is at work in this repository (process {holder['pid']}, since {holder['since']}); "
        "wait for it to end, or stop it and run again"
    )


def _lock_dvc(repo: "Repo") -> None:
    from dvc.lock import LockError

    try:
        repo.lock.lock()
    except LockError:
        lockfile = Path(repo.lock.lockfile)
        holder = lockfile.read_text().strip() if lockfile.is_file() else ""
        by = f" (process {holder})" if holder else ""
        raise InputError(
            f"a dvc command is at work in this repository{by}; wait for it to end, then run again"
        ) from None


def _refuse_busy_paths(repo: "Repo") -> None:
    """Refuse while a `dvc repro` runs a stage: for that time it gives up the lock and only marks its paths."""
    from dvc.lock import LockError
    from dvc.rwlock import RWLOCK_FILE, RWLockFileCorruptedError, rwlock

    root = repo.root_dir
    hardlink = repo.config["core"].get("hardlink_lock", False)
    try:
        with rwlock(repo.tmp_dir, repo.fs, " ".join(sys.argv), [], [root], hardlink):
            pass
    except RWLockFileCorruptedError:
        # Who wrote it was killed meanwhile, and all that DVC would say of it is to remove it.
        Path(repo.tmp_dir, RWLOCK_FILE).unlink()
        _refuse_busy_paths(repo)
    except LockError as error:
        raise InputError(f"a dvc command is running a stage of this repository: {error}") from None
