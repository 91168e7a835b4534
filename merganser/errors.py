"""Exceptions about things that the user can fix."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches

from merganser.terminal.failures import MISTAKE
from merganser.terminal.secrets import masked, printable

# What code that takes content apart raises where the content is not what it should be.
MALFORMED = (ValueError, LookupError, TypeError, AttributeError, OverflowError)


class InputError(ValueError):
    """Report a mistake in what the user gave: a parameter, a file, a checkpoint.

    The message says what is wrong, where, and what to do; stages and the command line print it and exit with 2. Names
    in it may come from anywhere: it shows no credentials, and nothing that a terminal would obey.
    """

    exit_code = MISTAKE

    def __str__(self) -> str:
        return printable(masked(super().__str__()))


class ExtraError(ModuleNotFoundError):
    """Report a library that is not installed; the message names the extra that brings it."""

    exit_code = MISTAKE


@contextmanager
def refusing(
    what: str, remedy: str, kinds: type[BaseException] | tuple[type[BaseException], ...] = MALFORMED
) -> Iterator[None]:
    """Turn errors of these kinds in the block into an InputError that says what is wrong and the remedy.

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
    """Turn any library error in the block into an InputError with its first line: some messages fill pages.

    Libraries have many ways to report a missing key or a wrong size.
    """
    try:
        yield
    except Exception as error:
        raise InputError(f"{what}: {next(iter(str(error).splitlines()), type(error).__name__)}") from error


def did_you_mean(word: str, known: Iterable[str], least: float = 0.6) -> str:
    """Suggest the nearest known word, as the end of a message; empty if none is near enough (`least`: 0 to 1)."""
    near = get_close_matches(word, list(known), n=1, cutoff=least)
    return f'; did you mean "{near[0]}"?' if near else ""


def some(names: Sequence[str], most: int = 3) -> str:
    """List the first few names, and how many more there are."""
    rest = len(names) - most
    return ", ".join(names[:most]) + (f" and {rest} more" if rest > 0 else "")
