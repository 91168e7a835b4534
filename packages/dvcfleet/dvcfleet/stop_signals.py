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
