"""End processes and their descendants: by SIGTERM, and some seconds later by SIGKILL."""

import os
import signal
import time
from collections.abc import Callable, Iterable

import psutil  # type: ignore[import-untyped]

# What the process that started a fork server tells it: to end its commands, to kill those that it is ending, or to
# leave what they left behind.
STOP, KILL, LEAVE = b"s", b"k", b"l"
# Seconds between SIGTERM and SIGKILL, in which a client can end its container, or `srun` its job.
GRACE_S = 5.0
# Seconds to wait after SIGKILL for a process that does not end, such as one in a system call.
_KILLED_LIMIT_S = 5.0


class Termination:
    """The end of the processes that `find` lists: SIGTERM at once, SIGKILL `grace_s` seconds later."""

    def __init__(self, find: Callable[[], set[psutil.Process]], grace_s: float) -> None:
        self._find = find
        self._kill_at = time.monotonic() + grace_s
        self._told: set[psutil.Process] = set()
        self.is_over()

    def is_over(self) -> bool:
        """Return whether all are gone. Poll this: it also sends SIGKILL when the time is up."""
        now = time.monotonic()
        if now < self._kill_at and any(map(_is_running, self._told)):
            return False
        # List them again: some may have been started meanwhile.
        left = {process for process in self._find() if _is_running(process)}
        if now >= self._kill_at:
            _send(signal.SIGKILL, left)
        else:
            _send(signal.SIGTERM, left - self._told)
        self._told |= left
        return not left or now > self._kill_at + _KILLED_LIMIT_S


def descendants() -> set[psutil.Process]:
    """Return all descendants of this process."""
    return set(psutil.Process().children(recursive=True))


def processes_of(leader: int) -> set[psutil.Process]:
    """Return a command's processes: its first one, those of its session, and all their descendants."""
    parents = {process: process.info["ppid"] for process in psutil.process_iter(["ppid"])}
    processes = {process for process in parents if process.pid == leader or _session(process.pid) == leader}
    while True:
        pids = {process.pid for process in processes}
        more = {process for process, parent in parents.items() if parent in pids} - processes
        if not more:
            return processes
        processes |= more


def _send(number: signal.Signals, processes: Iterable[psutil.Process]) -> None:
    """Send a signal to processes, ignoring those that have ended."""
    for process in processes:
        try:
            process.send_signal(number)
        except psutil.Error:
            continue


def _session(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except OSError:
        return None


def _is_running(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False
