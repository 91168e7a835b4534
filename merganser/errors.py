"""The one exception that means: the user can mend this."""


class InputError(ValueError):
    """Report a mistake in what the user gave: a parameter, a file, a checkpoint.

    The message says what is wrong, where, and what to do; stages and the command line print it as it is and exit with 2.
    """
