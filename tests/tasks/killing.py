"""Kill a stage's process at the moment when it is about to give a file its name."""

import os
import signal
import sys
from collections.abc import Callable
from typing import Any


def run_until(main: Callable[[list[str]], object], arguments: list[str], file: str = "", times: int = 1) -> None:
    """Run a stage's command, and kill this process when a file is whole but has not yet its name, the n-th time.

    Of all files whose path ends with `file`.
    """
    seen = 0

    def hook(event: str, args: tuple[Any, ...]) -> None:
        nonlocal seen
        if event == "os.rename" and os.fspath(args[1]).endswith(file):
            seen += 1
            if seen == times:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)
    main(arguments)
