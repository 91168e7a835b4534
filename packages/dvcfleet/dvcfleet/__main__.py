"""`dvcfleet`, and `python -m dvcfleet`: run the stages of a DVC repository in parallel."""

from collections.abc import Callable

from dvcfleet.command_line import main
from dvcfleet.worker.child import leave, system_exit_code


def start(command: Callable[[], None] = main) -> None:
    """Run a command line, then exit without tearing down the imported modules, which takes half a second."""
    try:
        command()
    except SystemExit as end:
        leave(system_exit_code(end))


if __name__ == "__main__":
    start()
