"""`python -m flows` is `merganser`, with the code of the current folder."""

from flows.cli import main


def start() -> None:
    """Run the command line, then exit without tearing down the imported modules, which takes half a second."""
    try:
        main()
    except SystemExit as end:
        from dvcfleet.worker.child import exit_code, leave

        leave(exit_code(end))


if __name__ == "__main__":
    start()
