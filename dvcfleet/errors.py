"""Exceptions whose messages are shown to the user."""

import os

from dvcfleet.secrets import masked, printable

# The exit code while another process writes to the repository: EX_TEMPFAIL of sysexits.h.
BUSY_EXIT_CODE = os.EX_TEMPFAIL


class UserError(ValueError):
    """A mistake in the user's input; the message says what is wrong, where, and what to do.

    The message may contain untrusted names, so credentials are masked and control characters escaped.
    """

    def __str__(self) -> str:
        return printable(masked(super().__str__()))


class BusyError(UserError):
    """Another process writes to the repository; `who` says which."""

    def __init__(self, who: str, advice: str) -> None:
        super().__init__(f"{who}; {advice}")
        self.who = who


class SkippedError(Exception):
    """The run was skipped, as `busy` says, because another process writes to the repository."""
