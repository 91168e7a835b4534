"""The text below the options in each command's --help."""

EXIT_CODES = (
    "Exit codes: 0 done, 1 something failed, 2 your mistake, 75 another run or a dvc command is at work in the "
    "repository (try again later), 130 stopped by Ctrl-C, 143 stopped by SIGTERM."
)


def example(command: str, *more: str) -> str:
    """Give an example of a command, and more paragraphs."""
    return "\n\n".join([f"Example: {command}", *more])
