"""A heartbeat: while nothing else is printed, say which stages are not done, and the last line of each."""

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from dvcfleet.terminal.secrets import printable
from dvcfleet.worker.output import last_line, log_path

# Seconds without output before the first heartbeat, and the longest time between two.
FIRST_S, LONGEST_S = 60.0, 600.0
_STAGES, _WIDTH = 4, 160


class Heartbeat:
    """A thread that calls `beat` after a minute without output, then after two, four, ... up to ten more minutes."""

    def __init__(self, beat: Callable[[], None]) -> None:
        self._beat = beat
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)
        self.restart()

    def restart(self) -> None:
        """Restart the timer: something was printed."""
        self._interval, self._due = FIRST_S, time.monotonic() + FIRST_S

    def __enter__(self) -> "Heartbeat":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(max(0.0, self._due - time.monotonic())):
            if time.monotonic() >= self._due:
                # Before the beat: what is printed meanwhile restarts the timer.
                self._interval = min(2 * self._interval, LONGEST_S)
                self._due = time.monotonic() + self._interval
                self._beat()


def describe_longest(root: Path, began: Mapping[str, float], now: float) -> Iterable[str]:
    """Describe the first stages of `began`, which has start times by name: the time since then, and the last line."""
    for name, then in list(began.items())[:_STAGES]:
        line = printable(last_line(log_path(root, name)))
        yield f"{name} is not done after {format_duration(now - then)}{f': {line[:_WIDTH]}' if line else ''}"
    if len(began) > _STAGES:
        yield f"and {len(began) - _STAGES} more"


def format_duration(seconds: float) -> str:
    """Format a duration for people."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
