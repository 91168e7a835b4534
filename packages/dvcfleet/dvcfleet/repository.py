"""Open a DVC repository and lock it: one writer at a time, DVC's own commands included."""

import fcntl
import json
import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, chdir, closing, contextmanager, suppress
from pathlib import Path
from typing import Any, TextIO

import psutil  # type: ignore[import-untyped]

from dvcfleet.crash_recovery import crash_recovery, is_unfinished
from dvcfleet.dvc_adapter.internals import check_needed, fast_index
from dvcfleet.dvc_adapter.protocols import Repo
from dvcfleet.dvc_adapter.repositories import (
    git_index_read_once,
    links_open,
    links_tested_once,
    whole_databases,
    words_of,
)
from dvcfleet.dvc_adapter.repository_lock import DvcLock, refuse_busy_paths
from dvcfleet.dvc_adapter.storing import reflinks_made_aside
from dvcfleet.errors import BusyError, NoRepositoryError, SkippedError, UserError
from dvcfleet.git import GitError, git
from dvcfleet.project import Project, project_of

STATE_FOLDER = ".dvcfleet"
RUN_LOCK = "lock"
_LOOK_AGAIN_S = 1.0
# Seconds within which a run that took the lock writes its name into it: a few system calls, on a busy machine.
NAMELESS_S = 5.0


@contextmanager
def opened(path: Path) -> Iterator[Repo]:
    """Open the DVC repository around `path`, with the folder of the dvc.yaml that is meant there as the current one.

    Raises UserError if there is no DVC repository, if DVC finds an error in it, or if its path has a ?, at which the
    URL of a SQLite database ends.
    """
    check_needed()
    from dvc.exceptions import DvcException, NotDvcRepoError

    if not path.is_dir():
        raise UserError(f"{path}: no such folder")
    here = path.resolve()
    if unfit := [each for each in (here, *here.parents) if "?" in each.name]:
        raise UserError(f"{unfit[0]}: SQLite databases, such as Prefect's, allow no ? in a path; rename it")
    logging.getLogger("dvc").setLevel(logging.ERROR)
    with chdir(pipeline_folder(path)), fast_index(), whole_databases(), reflinks_made_aside():
        project_of(Path()).before_reading()
        try:
            with _read() as repo:
                yield repo
        except NotDvcRepoError as error:
            raise NoRepositoryError(path) from error
        except DvcException as error:
            raise UserError(words_of(error)) from error


def _read() -> Any:
    """Open the repository around this folder; raise UserError in git's words if it cannot read its settings."""
    from dvc.repo import Repo

    try:
        return Repo()
    except ValueError as error:  # of the library by which DVC reads git's files
        try:
            git(Path(), "rev-parse", "--git-dir")
        except GitError as refusal:
            raise UserError(
                f"git cannot read this repository ({str(refusal).removeprefix('fatal: ')}); mend that first"
            ) from error
        raise


def state_folder(repo: Repo) -> Path:
    """Return the folder `.dvcfleet` in the repository's root; create it if missing, ignored by git."""
    folder = Path(repo.root_dir) / STATE_FOLDER
    folder.mkdir(exist_ok=True)
    ignore = folder / ".gitignore"
    if not ignore.exists():
        ignore.write_text("*\n", encoding="utf-8")
    return folder


def refuse_unfinished(repo: Repo) -> None:
    """Raise UserError if a run was killed before it wrote dvc.lock, which does not say all that ran then."""
    journal = state_folder(repo) / "journal"
    if journal.exists():
        raise UserError(f"a run was killed before it wrote dvc.lock ({journal} is there); run again to continue it")


def root_around(path: Path) -> Path:
    """Return the root of the DVC repository around a path, which is not opened; raise UserError if there is none."""
    folder = path.resolve()
    for ancestor in (folder, *folder.parents):
        if (ancestor / ".dvc").is_dir():
            return ancestor
    raise NoRepositoryError(path)


def pipeline_folder(path: Path) -> Path:
    """Return the folder whose dvc.yaml is meant: the nearest one above that has one, or a declared project's root."""
    try:
        root = root_around(path)
    except NoRepositoryError:  # said when it is opened
        return path
    if type(project_of(root)) is not Project:
        return root
    folder = path.resolve()
    inside = (each for each in (folder, *folder.parents) if each.is_relative_to(root))
    return next((each for each in inside if (each / "dvc.yaml").is_file()), path)


def existing_state_folder(path: Path) -> Path | None:
    """Return the state folder of the repository around a path; None if there is none."""
    folder = path.resolve()
    return next((each / STATE_FOLDER for each in (folder, *folder.parents) if (each / STATE_FOLDER).is_dir()), None)


def refuse(busy: BusyError) -> None:
    """Raise the error: do not wait for the repository."""
    raise busy


def when_busy(policy: str, say: Callable[[str], None]) -> Callable[[BusyError], None]:
    """Return the function that a run calls each time it finds the repository busy, for `refuse`, `wait` or `skip`."""
    announced: list[str] = []

    def wait(busy: BusyError) -> None:
        if busy.who not in announced:
            announced.append(busy.who)
            say(f"waiting: {busy.who}")
        time.sleep(_LOOK_AGAIN_S)

    def skip(busy: BusyError) -> None:
        raise SkippedError(f"skipped: {busy.who}")

    return {"refuse": refuse, "wait": wait, "skip": skip}[policy]


@contextmanager
def write_lock(
    repo: Repo, on_busy: Callable[[BusyError], None] = refuse, say: Callable[[str], None] = print
) -> Iterator[DvcLock]:
    """Exclude all other writers from the repository: other runs, and `dvc` commands that run or commit stages.

    Yields DVC's own lock, acquired; release it while DVC's state is neither read nor written. `say` is called when the
    run has to wait for it. `on_busy` is called with a BusyError that names the holder; if it returns, the locks are
    tried again. The system releases the locks when the process ends, also when it is killed.
    """
    with ExitStack() as locks:
        while True:
            try:
                locks.enter_context(held(state_folder(repo) / RUN_LOCK))
                lock = locks.enter_context(closing(DvcLock(repo, say)))
                refuse_busy_paths(repo)
                break
            except BusyError as busy:
                locks.close()
                on_busy(busy)
        with (
            crash_recovery(repo, state_folder(repo), say),
            links_open(repo),
            links_tested_once(),
            git_index_read_once(repo),
        ):
            yield lock


def is_writable(root: Path) -> bool:
    """Tell whether this user may write in a repository, and its file system is not mounted read-only."""
    folder = root / STATE_FOLDER
    return os.access(folder if folder.is_dir() else root, os.W_OK)


@contextmanager
def audit_lock(repo: Repo) -> Iterator[None]:
    """Exclude all writers from the repository as `write_lock` does; take no lock if this user can only read it.

    Raises UserError where a run is active there, or was killed and has not been continued.
    """
    root = Path(repo.root_dir)
    if is_writable(root):
        with write_lock(repo):
            yield
        return
    state = root / STATE_FOLDER
    if is_at_work(state):
        raise BusyError("another run is at work in this repository", "wait for it to end")
    if is_unfinished(state):
        raise UserError(
            f"{root}: a run was killed, and this user may not write here to continue it; ask the owner to run again"
        )
    with links_open(repo), links_tested_once(), git_index_read_once(repo):
        yield


def is_at_work(folder: Path) -> bool:
    """Tell whether a run is at work in the repository with this state folder."""
    try:
        with open(folder / RUN_LOCK, encoding="utf-8") as file:
            _lock(file, fcntl.LOCK_SH)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


@contextmanager
def held(path: Path, what: str = "another run") -> Iterator[None]:
    """Hold a file's lock with this process's name in it; raise BusyError with the holder's if `what` holds it."""
    with open(path, "a+", encoding="utf-8") as file:
        _lock_or_name(file, what)
        file.truncate(0)
        json.dump({"pid": os.getpid(), "since": time.strftime("%H:%M:%S on %Y-%m-%d")}, file)
        file.flush()
        try:
            yield
        finally:
            file.truncate(0)


def _lock_or_name(file: TextIO, what: str) -> None:
    """Lock the file, or raise BusyError with the holder's name.

    Just after locking and just before unlocking, the file is empty or names an earlier run that was killed: read it
    again until that moment has passed.
    """
    end = time.monotonic() + NAMELESS_S
    while True:
        try:
            _lock(file, fcntl.LOCK_EX)
            return
        except BlockingIOError:
            file.seek(0)
            holder = {"pid": "unknown", "since": "just now"}
            with suppress(ValueError, TypeError):
                holder |= json.loads(file.read())
        if time.monotonic() > end or (isinstance(holder["pid"], int) and psutil.pid_exists(holder["pid"])):
            who = f"{what} is at work in this repository (process {holder['pid']}, since {holder['since']})"
            raise BusyError(who, "wait for it to end, or stop it and run again")
        time.sleep(0.01)


def _lock(file: TextIO, how: int) -> None:
    """Lock a file without waiting; raise BlockingIOError if another process has, UserError if that is impossible."""
    try:
        fcntl.flock(file, how | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError as error:
        advice = "mount it with locks (Lustre: -o flock), or keep the repository on a local disk"
        raise UserError(f"{file.name}: the file system cannot lock files: {error.strerror}; {advice}") from error
