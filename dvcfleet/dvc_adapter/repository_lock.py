"""DVC's own lock of a repository, and the marks that keep its writers out while it is given up.

A `dvc` command tries to take the lock for three seconds, twice a second. `dvc repro` gives it up while a stage's
command runs, and marks the stage's paths as read or written for that time.
"""

import ctypes
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from dvcfleet.errors import BusyError

if TYPE_CHECKING:
    from dvc.repo import Repo

# A `dvc` command that waits tries again within half a second.
_TURN_S = 0.55
_IN_OPEN = 0x20  # of <sys/inotify.h>
_ADVICE = "wait for it to end, then run again"


class DvcLock:
    """DVC's lock of a repository; a run takes it while it reads or writes DVC's state.

    It is taken when this is made; raises BusyError while another process has it. `say` is told when it is waited for.
    """

    def __init__(self, repo: "Repo", say: Callable[[str], None]) -> None:
        self._lock, self._say = repo.lock, say
        self._opened = _Opened(Path(self._lock.lockfile))
        self._try_to_take()

    def close(self) -> None:
        """Give the lock up for good."""
        self._opened.close()
        if self._lock.is_locked:
            self._lock.unlock()

    def take(self) -> None:
        """Take the lock, waiting for it as long as it takes; again does nothing."""
        said = False
        while not self._lock.is_locked:
            try:
                self._try_to_take()
            except BusyError as busy:
                if not said:
                    self._say(f"waiting: {busy.who}")
                    said = True

    @contextmanager
    def given_up(self) -> Iterator[None]:
        """Let other processes have the lock within the block; wait for it at the end."""
        self._lock.unlock()
        try:
            yield
        finally:
            self.take()

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Have the lock within the block, waiting for it as long as it takes."""
        self.take()
        try:
            yield
        finally:
            if self._lock.is_locked:
                self._lock.unlock()

    def is_wanted(self) -> bool:
        """Tell whether another process has tried to take the lock since this one has it (on Linux)."""
        return self._opened.is_noted()

    def give_a_turn(self) -> None:
        """Give the lock up until a process that waits for it has had it."""
        with self.given_up():
            time.sleep(_TURN_S)

    def _try_to_take(self) -> None:
        from dvc.lock import LockError

        try:
            self._lock.lock()
        except LockError:
            path = Path(self._lock.lockfile)
            holder = path.read_text().strip() if path.is_file() else ""
            by = f" (process {holder})" if holder else ""
            raise BusyError(f"a dvc command is at work in this repository{by}", _ADVICE) from None
        self._opened.watch()


class _Opened:
    """Notes that a file was opened, by Linux' inotify; elsewhere it never does."""

    def __init__(self, path: Path) -> None:
        self._path, self._descriptor = path, -1
        self._is_watching = False
        with suppress(AttributeError):
            self._libc = ctypes.CDLL(None)
            self._descriptor = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)

    def watch(self) -> None:
        """Note what happens from now on."""
        if self._descriptor >= 0 and not self._is_watching:
            self._libc.inotify_add_watch(self._descriptor, os.fsencode(self._path), _IN_OPEN)
            self._is_watching = True
        self.is_noted()

    def is_noted(self) -> bool:
        """Tell whether the file was opened since this was last asked."""
        if self._descriptor < 0:
            return False
        try:
            return bool(os.read(self._descriptor, 4096))
        except BlockingIOError:
            return False

    def close(self) -> None:
        """Note nothing any more."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def refuse_busy_paths(repo: "Repo") -> None:
    """Raise BusyError while a `dvc repro` runs a stage: for that time it gives up the lock and marks its paths only."""
    from dvc.lock import LockError
    from dvc.rwlock import RWLOCK_FILE, RWLockFileCorruptedError

    try:
        with _marked(repo, write=True):
            pass
    except RWLockFileCorruptedError:
        # Its writer was killed meanwhile, and all that DVC would say is to remove it.
        Path(repo.tmp_dir, RWLOCK_FILE).unlink()
        refuse_busy_paths(repo)
    except LockError as error:
        raise BusyError(f"a dvc command is running a stage of this repository: {error}", _ADVICE) from None


@contextmanager
def readers_only(repo: "Repo") -> Iterator[None]:
    """Let `dvc` commands read the repository within the block, and refuse those that run or commit stages.

    The whole repository is marked as being read by this process, which DVC's own writers respect.
    """
    from dvc.lock import LockError
    from dvc.rwlock import RWLockFileCorruptedError

    with ExitStack() as marks:
        marks.enter_context(_marked(repo, write=False))
        try:
            yield
        finally:
            # Somebody may have removed the file of marks, as DVC advises, or was killed while writing it.
            with suppress(LockError, RWLockFileCorruptedError, AssertionError):
                marks.close()


@contextmanager
def _marked(repo: "Repo", write: bool) -> Iterator[None]:
    from dvc.rwlock import rwlock

    paths = [repo.root_dir]
    # The name by which DVC's decorators know this process: its own calls pass.
    command = " ".join(sys.argv)
    hardlink = repo.config["core"].get("hardlink_lock", False)
    read_write = ([], paths) if write else (paths, [])
    with rwlock(repo.tmp_dir, repo.fs, command, *read_write, hardlink):
        yield
