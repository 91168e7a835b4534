"""Tell the user what a command waits for, if it takes long."""

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

LONG_S = 3.0

Step = Callable[[str], None]


def in_silence(doing: str) -> None:
    """Report nothing."""


@contextmanager
def said_if_long() -> Iterator[Step]:
    """Yield a function to call before each action; an action longer than some seconds is reported on stderr."""
    timer = threading.Timer(LONG_S, in_silence)

    def step(doing: str) -> None:
        nonlocal timer
        timer.cancel()
        timer = threading.Timer(LONG_S, print, [f"{doing} ..."], {"file": sys.stderr, "flush": True})
        timer.daemon = True
        timer.start()

    try:
        yield step
    finally:
        timer.cancel()
