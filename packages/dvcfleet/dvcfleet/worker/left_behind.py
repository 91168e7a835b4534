"""The reader of what a stage's children print after its end, as `python -m dvcfleet.worker.left_behind LOG`."""

import os
import sys
from pathlib import Path

from dvcfleet.worker.output import Lines, logging_to


def main() -> None:
    """Append standard input to the log until it ends; if the log cannot be written, read on nevertheless."""
    os.set_blocking(0, True)
    with logging_to(Path(sys.argv[1]), lambda text: None) as write:
        lines = Lines(write)
        while data := os.read(0, 1 << 16):
            lines.feed(data)
            lines.pass_on()
        lines.last()


if __name__ == "__main__":
    main()
