"""`python -m flows` is `merganser`, with the code of the folder it is run in."""

from typing import NoReturn

from flows.cli import main


def start() -> NoReturn:
    """Run the command line, and end without taking apart the modules that it imported: that takes half a second."""
    code = 0
    try:
        main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0
    from flows.host import leave

    leave(code)


if __name__ == "__main__":
    start()
