"""Exceptions for what the user can fix."""

from collections.abc import Iterator
from contextlib import contextmanager

from dvcfleet.errors import UserError
from dvcfleet.errors import did_you_mean as did_you_mean
from dvcfleet.errors import some as some

# What code that takes content apart raises where the content is not what it should be.
MALFORMED = (ValueError, LookupError, TypeError, AttributeError, OverflowError)


class InputError(UserError):
    """Report a mistake in what the user gave: a parameter, a file, a checkpoint.

    The message says what is wrong, where, and what to do; stages and the command line print it and exit with 2. Names
    in it may come from anywhere: it shows no credentials, and nothing that a terminal would obey.
    """


class ExtraError(ModuleNotFoundError):
    """Report a library that is not installed; the message names the extra that brings it."""


@contextmanager
def refusing(
    what: str, remedy: str, kinds: type[Exception] | tuple[type[Exception], ...] = MALFORMED
) -> Iterator[None]:
    """Raise InputError, which says what is wrong and what to do, where the block raises an error of these kinds.

    An InputError of the block stays as it is.
    """
    try:
        yield
    except InputError:
        raise
    except kinds as error:
        raise InputError(f"{what} ({str(error) or type(error).__name__}); {remedy}") from error


@contextmanager
def quoting(what: str) -> Iterator[None]:
    """Raise InputError with the first line of whatever a library raises in the block: some messages fill pages.

    What a file may lack, and sizes that do not fit, libraries say in many ways.
    """
    try:
        yield
    except Exception as error:
        raise InputError(f"{what}: {next(iter(str(error).splitlines()), type(error).__name__)}") from error
