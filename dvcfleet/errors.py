"""The exceptions whose messages are for the user."""

import os

from dvcfleet.secrets import masked, printable

# What a run exits with while something else writes in the repository: sysexits.h's EX_TEMPFAIL, 75.
BUSY_EXIT_CODE = os.EX_TEMPFAIL


class UserError(ValueError):
    """Report a mistake in what the user gave; the message says what is wrong, where, and what to do.

    Names in it may come from anywhere: it shows no credentials, and nothing that a terminal would obey.
    """

    def __str__(self) -> str:
        return printable(masked(super().__str__()))


class BusyError(UserError):
    """Something else writes in the repository; `who` says what."""

    def __init__(self, who: str, advice: str) -> None:
        super().__init__(f"{who}; {advice}")
        self.who = who


class SkippedError(Exception):
    """The run was skipped, as `busy` says, since something else writes in the repository."""
