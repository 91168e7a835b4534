"""`python -m flows` is `merganser`, with the code of the folder it is run in."""

from flows.cli import main


def start() -> None:
    """Run the command line, and end without taking apart the modules that it imported: that takes half a second."""
    try:
        main()
    except SystemExit as end:
        from dvcfleet.execution.fork_server import exit_code, leave

        leave(exit_code(end))


if __name__ == "__main__":
    start()
