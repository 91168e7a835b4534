"""Exceptions whose messages are shown to the user."""

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from pathlib import Path

from dvcfleet.terminal.failures import MISTAKE
from dvcfleet.terminal.secrets import masked, printable

# The exit code while another process writes to the repository: EX_TEMPFAIL of sysexits.h.
BUSY_EXIT_CODE = 75


class UserError(ValueError):
    """A mistake in the user's input; the message says what is wrong, where, and what to do.

    The message may contain untrusted names, so credentials are masked and control characters escaped.
    """

    exit_code = MISTAKE

    def __str__(self) -> str:
        return printable(masked(super().__str__()))


class NoRepositoryError(UserError):
    """A folder is in no DVC repository."""

    def __init__(self, folder: Path) -> None:
        super().__init__(f"{folder}: not in a DVC repository; go into one or name it (--repo)")


class BusyError(UserError):
    """Another process writes to the repository; `who` says which."""

    exit_code = BUSY_EXIT_CODE

    def __init__(self, who: str, advice: str) -> None:
        super().__init__(f"{who}; {advice}")
        self.who = who


class FailedError(Exception):
    """Something failed that is not a mistake of the user's; the message says what, where, and what to do."""

    exit_code = 1


class ExecutorLostError(Exception):
    """No worker is left to run a job."""


class SkippedError(Exception):
    """The run was skipped, as `busy` says, because another process writes to the repository."""

    exit_code = 0


def in_one_line(error: BaseException) -> str:
    """Return an error's message on one line, with its class before it if the message is just a name."""
    text = " ".join(str(error).split())
    is_name = not text or isinstance(error, LookupError | AttributeError | AssertionError)
    return ": ".join(filter(None, (type(error).__name__ if is_name else "", text)))


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Suggest the nearest known word, as the end of a message; empty if none is near."""
    near = get_close_matches(word, list(known), n=1)
    return f'; did you mean "{near[0]}"?' if near else ""


def some(names: Sequence[str], most: int = 3) -> str:
    """List the first few names, and how many more there are."""
    rest = len(names) - most
    return ", ".join(names[:most]) + (f" and {rest} more" if rest > 0 else "")


def stage_count(count: int, one: str = "", more: str = "") -> str:
    """Return the number of stages, followed by the text for one or for several.

    >>> stage_count(1, " is done", " are done"), stage_count(2, " is done", " are done")
    ('1 stage is done', '2 stages are done')
    """
    return f"1 stage{one}" if count == 1 else f"{count} stages{more}"


def format_duration(seconds: float) -> str:
    """Format a duration for people."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
