"""DVC's own lock of a repository, and the path locks of the stages that run while it is released.

A `dvc` command tries to take the lock for three seconds, twice a second. `dvc repro` releases it while a stage's
command runs, and locks the stage's paths for reading or writing meanwhile.
"""

import ctypes
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from dvcfleet.disk import file_state
from dvcfleet.dvc_adapter.protocols import Item, Repo, Stage
from dvcfleet.errors import BusyError

if TYPE_CHECKING:
    from networkx import DiGraph


# A waiting `dvc` command tries again within half a second.
_TURN_S = 0.55
_IN_OPEN = 0x20  # of <sys/inotify.h>
_ADVICE = "wait for it to end, then run again"


class DvcLock:
    """DVC's lock of a repository; a run holds it while it reads or writes DVC's state.

    The constructor takes it, or raises BusyError if another process holds it. `say` is called if the run has to wait.
    """

    def __init__(self, repo: Repo, say: Callable[[str], None]) -> None:
        self._lock, self._say = repo.lock, say
        self._paths = PathLocks(repo)
        self._said: set[str] = set()
        self._opened = _Opened(Path(self._lock.lockfile))
        self._try_to_take()

    def close(self) -> None:
        """Release the lock and close it."""
        self._paths.close()
        self._opened.close()
        if self._lock.is_locked:
            self._lock.unlock()

    def take(self) -> None:
        """Take the lock, waiting without a limit; does nothing if it is held."""
        while not self._lock.is_locked:
            try:
                self._try_to_take()
            except BusyError as busy:
                self._announce(busy)

    def lock_paths(self, stage: Stage) -> bool:
        """Lock a stage's paths for others while this lock is released; return False if others have."""
        try:
            self._paths.add(stage)
        except BusyError as busy:
            self._announce(busy)
            return False
        return True

    def _announce(self, busy: BusyError) -> None:
        if busy.who not in self._said:
            self._said.add(busy.who)
            self._say(f"waiting: {busy.who}")

    def unlock_paths(self, name: str) -> None:
        """Unlock the paths of a stage."""
        self._paths.remove(name)

    @contextmanager
    def released(self) -> Iterator[None]:
        """Release the lock within the block; wait for it at the end."""
        self._paths.show()
        self._lock.unlock()
        try:
            yield
        finally:
            self.take()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the lock within the block, waiting for it without a limit."""
        self.take()
        try:
            yield
        finally:
            if self._lock.is_locked:
                self._lock.unlock()

    def is_wanted(self) -> bool:
        """Tell whether another process has tried to take the lock since this one took it."""
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
            holder = path.read_text(encoding="utf-8").strip() if path.is_file() else ""
            by = f" (process {holder})" if holder else ""
            raise BusyError(f"a dvc command is at work in this repository{by}", _ADVICE) from None
        self._opened.watch()


class _Opened:
    """Detects by inotify that a file was opened; where the system gives no more instances of it, it never does."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._is_watching = False
        self._libc = ctypes.CDLL(None)
        self._descriptor = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)

    def watch(self) -> None:
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
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def refuse_busy_paths(repo: Repo) -> None:
    """Raise BusyError while a `dvc repro` runs a stage: it then holds locks on the stage's paths only."""
    with _marked(repo, [], [repo.root_dir]):
        pass


class PathLocks:
    """The paths of the stages that run, for DVC's list of path locks, which shows those of `dvc repro` too.

    The list is written when it is to be seen, by `show`: before DVC's own lock is released.
    """

    def __init__(self, repo: Repo) -> None:
        self._repo = repo
        self._list = Path(repo.tmp_dir) / "rwlock"
        self._wanted: dict[str, list[str]] = {}
        self._shown: set[str] = set()
        self._marks = ExitStack()
        self._as_seen = file_state(self._list)

    def add(self, stage: Stage) -> None:
        """Lock a stage's inputs and outputs, and the outputs of its readers: others may only read them.

        So `dvc status` works, and stages that could not run next to `dvc repro` cannot run: neither the stage
        itself nor its readers. Raises BusyError if a `dvc` command has locked them. DVC's own lock must be
        held.
        """
        readers = self._graph.predecessors(stage) if stage in self._graph else ()
        read, write = _paths(stage.deps), _paths(stage.outs)
        if file_state(self._list) != self._as_seen:
            # Others have written the list, which they do only while they hold DVC's own lock.
            with _marked(self._repo, read, write):
                pass
            self._as_seen = file_state(self._list)
        self._wanted[stage.addressing] = [*read, *write, *(path for each in readers for path in _paths(each.outs))]

    def remove(self, name: str) -> None:
        """Unlock the paths of a stage."""
        self._wanted.pop(name, None)

    def show(self) -> None:
        """Write the list as it is now."""
        if self._wanted.keys() == self._shown:
            return
        self._hide()
        if self._wanted:
            paths = sorted({path for paths in self._wanted.values() for path in paths})
            self._marks.enter_context(_marked(self._repo, paths, []))
            self._shown = set(self._wanted)
        self._as_seen = file_state(self._list)

    @cached_property
    def _graph(self) -> "DiGraph":
        return self._repo.index.graph

    def close(self) -> None:
        """Unlock all paths."""
        self._wanted.clear()
        self.show()

    def _hide(self) -> None:
        self._shown = set()
        # A user may have removed the list, as DVC advises, or a writer of it was killed.
        with suppress(BusyError, AssertionError, KeyError, *_damage()):
            self._marks.close()


def _paths(items: Iterable[Item]) -> list[str]:
    """Return the paths that are in this repository's reach: imports have none of their own."""
    return [item.fs_path for item in items if getattr(item, "protocol", None) == "local"]


def _damage() -> tuple[type[Exception], ...]:
    from dvc.rwlock import RWLockFileCorruptedError, RWLockFileFormatError

    return RWLockFileCorruptedError, RWLockFileFormatError, UnicodeDecodeError


@contextmanager
def _marked(repo: Repo, read: list[str], write: list[str]) -> Iterator[None]:
    """Lock paths in DVC's list within the block; raise BusyError if a `dvc` command has locked them."""
    from dvc.lock import LockError
    from dvc.rwlock import RWLOCK_FILE, rwlock

    # The name under which DVC's decorators look for this process's locks: its own calls pass.
    command = " ".join(sys.argv)
    hardlink = repo.config["core"].get("hardlink_lock", False)
    try:
        with ExitStack() as marks:
            try:
                marks.enter_context(rwlock(repo.tmp_dir, repo.fs, command, read, write, hardlink))
            except _damage():
                # Its writer was killed meanwhile; DVC's message would only say to remove it.
                Path(repo.tmp_dir, RWLOCK_FILE).unlink()
                marks.enter_context(rwlock(repo.tmp_dir, repo.fs, command, read, write, hardlink))
            yield
    except LockError as error:
        raise BusyError(f"a dvc command is running a stage of this repository: {error}", _ADVICE) from None
