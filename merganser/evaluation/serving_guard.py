"""Run a command in its own process group, and end the group when standard input closes.

Standard input closes whenever the process at its other end ends, also by a kill. Run this file as a program.
"""

import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress

GRACE_S = 10.0  # between SIGTERM and SIGKILL
STEP_S = 0.05
PR_SET_CHILD_SUBREAPER = 36


def main(command: list[str]) -> int:
    """Run the command; return its exit code as a shell does, 0 if it was ended."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # what its processes leave behind ends up here
    started = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
    group = started.pid  # kept as long as it runs: a Popen that is let go takes the code of one that has ended
    code = None
    while code is None:
        is_read, _, _ = select.select([0], [], [], STEP_S)
        code = 0 if is_read and not os.read(0, 1024) else collect_exit_codes().get(group)
    with suppress(ProcessLookupError):
        end(group)
    return code if code >= 0 else 128 - code


def collect_exit_codes() -> dict[int, int]:
    """Return the exit codes of processes that have ended, negative for a signal."""
    codes = {}
    with suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            codes[ended[0]] = os.waitstatus_to_exitcode(ended[1])
    return codes


def end(group: int) -> None:
    """Terminate a process group, and kill it if it does not end; raise ProcessLookupError once it is gone."""
    os.killpg(group, signal.SIGTERM)
    until = time.monotonic() + GRACE_S
    while time.monotonic() < until:
        collect_exit_codes()
        os.killpg(group, 0)
        time.sleep(STEP_S)
    os.killpg(group, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
