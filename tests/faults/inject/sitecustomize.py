"""Kill this process at its n-th file operation: what Python imports at start where this folder is in PYTHONPATH.

FAULTS names a JSON file: `root`, the folder whose files count; `kill`, per process the operation that it is not to
live to make, or -1 for its exit; `only`, what the paths of the operations that count have in them; `log`, a file that
gets a line per operation; `group`, whether the run takes its group of processes with it. A process goes by the stage
that DVC_STAGE names, or by `run`: the first one started. The file is read when a process comes to its first operation,
so that one host can serve many trials.
"""

import atexit
import json
import os
import signal
import sys
from typing import Any

_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT
_CHANGES = ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link", "os.symlink", "os.chmod", "os.utime")
# Files of Python, git and Prefect's server: how often they are touched is not the same each time.
_OTHERS = ("__pycache__", "/.dvcfleet/prefect", "/.git/")


class Faults:
    """Count the file operations of this process, and end it at the one that was asked for."""

    def __init__(self) -> None:
        self._run = int(os.environ.setdefault("FAULTS_RUN", str(os.getpid())))
        self._process: tuple[int, str] | None = None
        self._plan: dict[str, Any] = {}
        self._counted = 0
        self._busy = False

    def hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Take an audit event: Python raises it before it does what it says."""
        if event == "open":
            path, _mode, flags = arguments
            if not isinstance(flags, int) or not flags & _WRITES:
                return
        elif event in _CHANGES:
            path = arguments[0]
        else:
            return
        if isinstance(path, str | bytes | os.PathLike):
            self.step(event, os.path.abspath(os.fsdecode(path)))

    def step(self, event: str, path: str) -> None:
        """Count an operation on a file of the repository."""
        role = self._role()
        if self._busy or role is None:
            return
        self._busy = True
        try:
            self._load(role)
            inside = path.removeprefix(self._plan["root"])
            if inside == path or self._plan["only"] not in inside or any(other in path for other in _OTHERS):
                return
            self._counted += 1
            self._note(f"{role}\t{self._counted}\t{event}\t{path}\n")
        finally:
            self._busy = False
        if self._plan["kill"].get(role) == self._counted:
            self._die(role)

    def end(self) -> None:
        """Take the end of a process whose work is done."""
        role = self._role()
        if role is None:
            return
        self._load(role)
        if self._plan["kill"].get(role) == -1:
            self._die(role)

    def _role(self) -> str | None:
        # A stage's process is a fork of its host, which knows nothing of the stage.
        return os.environ.get("DVC_STAGE") or ("run" if os.getpid() == self._run else None)

    def _load(self, role: str) -> None:
        if self._process == (os.getpid(), role):
            return
        with open(os.environ["FAULTS"]) as file:
            self._plan = json.load(file)
        self._process, self._counted = (os.getpid(), role), 0

    def _note(self, line: str) -> None:
        if self._plan["log"]:
            with open(self._plan["log"], "a") as log:
                log.write(line)

    def _die(self, role: str) -> None:
        if role == "run" and self._plan["group"]:
            os.killpg(0, signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)


def _arm(faults: Faults) -> None:
    sync = os.fsync

    def counted_sync(file: int) -> None:
        faults.step("os.fsync", os.readlink(f"/proc/self/fd/{file}"))
        sync(file)

    os.fsync = counted_sync
    sys.addaudithook(faults.hear)
    atexit.register(faults.end)


if "FAULTS" in os.environ:
    _arm(Faults())
