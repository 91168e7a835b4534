"""Stop cleanly on signals."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


def ignore_interrupts() -> None:
    """Ignore Ctrl-C, which goes to all processes of the terminal: the run decides what to end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # those that stop a run


class Stop:
    """Turns signals into KeyboardInterrupt, and sets `exit_code`, which is 0 until the first of them.

    While stages are being ended, the next signal calls `hasten` instead, once.
    """

    exit_code = 0
    hasten: Callable[[], object] | None = None

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

    def _interrupt(self, number: int, _frame: FrameType | None) -> None:
        self.exit_code = self.exit_code or 128 + number
        if self.hasten is None:
            raise KeyboardInterrupt
        hasten, self.hasten = self.hasten, None
        hasten()
