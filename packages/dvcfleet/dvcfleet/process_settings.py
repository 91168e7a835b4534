"""Settings of the engine's processes: its own variables, proxies, garbage collection, open files, and signals.

A run has some files open for each stage that it waits for (`ulimit -n`). No stage's command gets the engine's
variables, and servers on this machine are reached directly, whatever proxy the environment names.
"""

import gc
import os
import resource
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType

from dvcfleet.errors import UserError

# Names the variables that a process which is the engine's own has set for those that it starts.
_HANDED_DOWN = "DVCFLEET_OWN_VARIABLES"
_OWN: dict[str, str] = {}


def set_own(name: str, value: str) -> None:
    """Set a variable for this process only."""
    os.environ[name] = _OWN[name] = value


def hand_down(variables: Mapping[str, str]) -> None:
    """Set variables for this process and for the engine's child processes."""
    os.environ.update(variables)
    os.environ[_HANDED_DOWN] = " ".join(variables)


def without_own(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment without variables that still have the engine's values."""
    handed_down = {_HANDED_DOWN, *environment.get(_HANDED_DOWN, "").split()}
    return {name: value for name, value in environment.items() if _OWN.get(name) != value and name not in handed_down}


_PROXIES = ("http_proxy", "https_proxy", "all_proxy")
_HERE = "127.0.0.1,localhost,::1"


def reach_this_machine() -> None:
    """Bypass proxies for loopback servers, in this process and all its children."""
    without = os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or ""
    if any(name.lower() in _PROXIES for name in os.environ) and without != "*":
        os.environ["no_proxy"] = os.environ["NO_PROXY"] = ",".join(filter(None, (without, _HERE)))


def raise_gc_thresholds() -> None:
    """Raise the GC thresholds: most objects live until exit, and each collection would traverse them all."""
    gc.set_threshold(100_000, 50, 100)


# What a run was seen to have open: 4 for each stage, and 23 besides; a database or a client may open more.
PER_STAGE, BESIDES = 5, 80
# Tells a fork server, whose limit is as this process's, which limit its commands get.
_GIVEN = "DVCFLEET_OPEN_FILES"
_given: dict[str, str] = {}


def room_for(stages: int) -> int:
    """Raise this process's limit for parallel stages; return how many it allows; raise UserError if not even one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = BESIDES + PER_STAGE * stages
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return stages
    limit = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    fitting = (limit - BESIDES) // PER_STAGE
    if fitting < 1:
        raise UserError(
            f"a process may open {limit} files here (ulimit -n), a run needs {BESIDES + PER_STAGE}: raise it"
        )
    if limit > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
        _given.setdefault(_GIVEN, str(soft))
    return min(stages, fitting)


def given_limit() -> dict[str, str]:
    """Return the variable that tells a fork server the original limit; empty if it was not raised."""
    return dict(_given)


def restore_limit() -> None:
    """Give a process that becomes a command the run's original limit."""
    if given := os.environ.pop(_GIVEN, ""):
        resource.setrlimit(resource.RLIMIT_NOFILE, (int(given), resource.getrlimit(resource.RLIMIT_NOFILE)[1]))


def ignore_interrupts() -> None:
    """Ignore Ctrl-C, which goes to all processes of the terminal: the run decides what to end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # those that stop a run


class Stop:
    """Turns signals into KeyboardInterrupt, and sets `exit_code`, which is 0 until the first of them.

    A second signal calls the function of `hasten_by` instead, as soon as there is one.
    """

    exit_code = 0
    _signals = 0
    _hasten: Callable[[], object] | None = None

    @contextmanager
    def on_signals(self, *numbers: signal.Signals) -> Iterator[None]:
        """Raise KeyboardInterrupt within the block on these signals."""
        # An ignored signal stays ignored, such as SIGINT in a script's background process.
        before = {n: signal.signal(n, self._interrupt) for n in numbers if signal.getsignal(n) != signal.SIG_IGN}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def hasten_by(self, hasten: Callable[[], object] | None) -> None:
        """Call a function at the next signal, once, or at once if two have come; None: call none."""
        self._hasten = hasten
        if self._signals > 1:
            self._call()

    def _interrupt(self, number: int, _frame: FrameType | None) -> None:
        self.exit_code = self.exit_code or 128 + number
        self._signals += 1
        if self._hasten is None and self._signals != 2:
            raise KeyboardInterrupt
        self._call()

    def _call(self) -> None:
        hasten, self._hasten = self._hasten, None
        if hasten is not None:
            hasten()
