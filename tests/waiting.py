"""Wait for what other processes do."""

import time
from collections.abc import Callable

LIMIT_S = 240.0  # long enough for a busy machine: what is waited for takes seconds


def wait_until(holds: Callable[[], object], limit_s: float = LIMIT_S) -> None:
    """Wait until something holds; raise AssertionError if it does not within some seconds."""
    deadline = time.monotonic() + limit_s
    while not holds():
        assert time.monotonic() < deadline, f"did not come to hold within {limit_s:g} s"
        time.sleep(0.05)
