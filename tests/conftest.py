"""Ctrl-C is tried in tests: a shell that starts them in the background makes them, and all they start, ignore it."""

import signal


def pytest_configure() -> None:
    """Heed it again, before workers start."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
