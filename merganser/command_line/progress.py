"""Progress of long work: on a terminal a bar with the time left, elsewhere a line every half minute."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from merganser.progress import Progress

OPENING = "opening the models"
EVERY_S = 30.0


@contextmanager
def progress_bar(console: Console | None = None, every_s: float = EVERY_S) -> Iterator[Progress]:
    """Show on standard error what is being done, how much of it, and the time left or spent."""
    console = console or Console(stderr=True)
    with _bar(console) if console.is_terminal else _lines(console, every_s) as progress:
        yield progress


@contextmanager
def _bar(console: Console) -> Iterator[Progress]:
    columns = TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn()
    with Bar(*columns, TimeRemainingColumn(), console=console, transient=True) as bar:
        row = bar.add_task(OPENING, total=None)

        def show(what: str, done: int, total: int) -> None:
            if done == 0:  # the time left is that of this work, not of what was done before
                bar.reset(row, total=total, description=what)
            bar.update(row, completed=done)

        yield show


@contextmanager
def _lines(console: Console, every_s: float) -> Iterator[Progress]:
    began, over, doing = time.monotonic(), threading.Event(), [OPENING]

    def note(what: str, done: int, total: int) -> None:
        doing[0] = f"{what}: {done / total:.0%}" if total else what

    def say() -> None:
        while not over.wait(every_s):
            console.file.write(f"{doing[0]}, after {time.monotonic() - began:.0f} s\n")
            console.file.flush()

    thread = threading.Thread(target=say, name="progress", daemon=True)
    thread.start()
    try:
        yield note
    finally:
        over.set()
        thread.join()
