"""Standard streams that are closed, cannot be written, or lack characters in their encoding."""

import errno
import io
import os
import sys
from contextlib import suppress
from typing import Any, TextIO

_NAMES = ("stdin", "stdout", "stderr")


def open_streams() -> None:
    """Open closed standard streams on /dev/null; have the others escape characters that their encoding lacks.

    Schedulers start jobs with closed streams. Python leaves these out, so the next opened file gets the number of
    the closed one, and a command's output would be written into that file.
    """
    for number, name in enumerate(_NAMES):
        stream = getattr(sys, name)
        if stream is None:
            stream = _opened(number)
            setattr(sys, name, stream)
            setattr(sys, f"__{name}__", stream)
        if number and isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _opened(number: int) -> TextIO:
    try:
        os.fstat(number)
    except OSError:
        null = os.open(os.devnull, os.O_RDWR)
        if null != number:
            os.dup2(null, number)
            os.close(null)
        os.set_inheritable(number, True)
        return open(number, "w" if number else "r", encoding="utf-8", closefd=False)
    return open(os.devnull, "w" if number else "r", encoding="utf-8")  # something else has the number by now


def drop_unwritten(stream: TextIO) -> None:
    """Discard unwritten output of a stream: flushing it again would fail again."""
    with suppress(OSError, ValueError, AttributeError):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


class StandardOutput:
    """Standard output of a run: stages continue if it cannot be written, as on a full disk.

    `close` reports that once. A reader that stops reading, such as `head`, is not reported.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._error: OSError | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write as much of a text as possible; return its length."""
        with suppress(ValueError):  # closed
            self._try(self._stream.write, text)
        return len(text)

    def flush(self) -> None:
        """Write as much of the buffer as possible."""
        self._try(self._stream.flush)

    def close(self) -> None:
        """Discard unwritten output, and name the error on standard error."""
        self.flush()
        drop_unwritten(self._stream)
        if self._error and not isinstance(self._error, BrokenPipeError):
            with suppress(OSError):
                print(f"standard output lacks lines of this run: {self._error.strerror}", file=sys.stderr, flush=True)
        self._error = None

    def _try(self, call: Any, *arguments: Any) -> None:
        try:
            call(*arguments)
        except OSError as error:
            self._error = self._error or error
            if error.errno == errno.EPIPE:
                drop_unwritten(self._stream)
