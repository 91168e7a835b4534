"""DVC's own lock of a repository, and the path locks that exclude DVC's writers while it is released.

A `dvc` command tries to take the lock for three seconds, twice a second. `dvc repro` releases it while a stage's
command runs, and locks the stage's paths for reading or writing meanwhile.
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

# A waiting `dvc` command tries again within half a second.
_TURN_S = 0.55
_IN_OPEN = 0x20  # of <sys/inotify.h>
_ADVICE = "wait for it to end, then run again"


class DvcLock:
    """DVC's lock of a repository; a run holds it while it reads or writes DVC's state.

    The constructor takes it, or raises BusyError if another process holds it. `say` is called if the run has to wait.
    """

    def __init__(self, repo: "Repo", say: Callable[[str], None]) -> None:
        self._lock, self._say = repo.lock, say
        self._opened = _Opened(Path(self._lock.lockfile))
        self._try_to_take()

    def close(self) -> None:
        """Release the lock and close it."""
        self._opened.close()
        if self._lock.is_locked:
            self._lock.unlock()

    def take(self) -> None:
        """Take the lock, waiting without a limit; does nothing if it is held."""
        said = False
        while not self._lock.is_locked:
            try:
                self._try_to_take()
            except BusyError as busy:
                if not said:
                    self._say(f"waiting: {busy.who}")
                    said = True

    @contextmanager
    def released(self) -> Iterator[None]:
        """Release the lock within the block; wait for it at the end."""
        self._lock.unlock()
        try:
            yield
        finally:
            self.take()

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Hold the lock within the block, waiting for it without a limit."""
        self.take()
        try:
            yield
        finally:
            if self._lock.is_locked:
                self._lock.unlock()

    def is_wanted(self) -> bool:
        """Tell whether another process has tried to take the lock since this one took it (on Linux only)."""
        return self._opened.is_noted()

    def give_a_turn(self) -> None:
        """Release the lock until a waiting process has taken and released it."""
        with self.released():
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
    """Detects by Linux' inotify that a file was opened; on other systems it never does."""

    def __init__(self, path: Path) -> None:
        self._path, self._descriptor = path, -1
        self._is_watching = False
        with suppress(AttributeError):
            self._libc = ctypes.CDLL(None)
            self._descriptor = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)

    def watch(self) -> None:
        """Start to watch."""
        if self._descriptor >= 0 and not self._is_watching:
            self._libc.inotify_add_watch(self._descriptor, os.fsencode(self._path), _IN_OPEN)
            self._is_watching = True
        self.is_noted()

    def is_noted(self) -> bool:
        """Tell whether the file was opened since the last call."""
        if self._descriptor < 0:
            return False
        try:
            return bool(os.read(self._descriptor, 4096))
        except BlockingIOError:
            return False

    def close(self) -> None:
        """Stop watching."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def refuse_busy_paths(repo: "Repo") -> None:
    """Raise BusyError while a `dvc repro` runs a stage: it then holds locks on the stage's paths only."""
    from dvc.lock import LockError
    from dvc.rwlock import RWLOCK_FILE, RWLockFileCorruptedError, RWLockFileFormatError

    try:
        with _marked(repo, write=True):
            pass
    except (RWLockFileCorruptedError, RWLockFileFormatError, UnicodeDecodeError):
        # Its writer was killed meanwhile; DVC's message would only say to remove it.
        Path(repo.tmp_dir, RWLOCK_FILE).unlink()
        refuse_busy_paths(repo)
    except LockError as error:
        raise BusyError(f"a dvc command is running a stage of this repository: {error}", _ADVICE) from None


@contextmanager
def readers_only(repo: "Repo") -> Iterator[None]:
    """Let `dvc` commands read the repository within the block, and refuse those that run or commit stages.

    This process holds a read lock on the whole repository, which DVC's own writers respect.
    """
    from dvc.lock import LockError
    from dvc.rwlock import RWLockFileCorruptedError, RWLockFileFormatError

    with ExitStack() as marks:
        marks.enter_context(_marked(repo, write=False))
        try:
            yield
        finally:
            # A user may have removed the file of path locks, as DVC advises, or a writer of it was killed.
            damaged = (RWLockFileCorruptedError, RWLockFileFormatError, UnicodeDecodeError)
            with suppress(LockError, AssertionError, *damaged):
                marks.close()


@contextmanager
def _marked(repo: "Repo", write: bool) -> Iterator[None]:
    from dvc.rwlock import rwlock

    paths = [repo.root_dir]
    # The name under which DVC's decorators look for this process's locks: its own calls pass.
    command = " ".join(sys.argv)
    hardlink = repo.config["core"].get("hardlink_lock", False)
    read_write = ([], paths) if write else (paths, [])
    with rwlock(repo.tmp_dir, repo.fs, command, *read_write, hardlink):
        yield
