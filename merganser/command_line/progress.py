"""A progress bar with the time left, on a terminal only."""

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from merganser.progress import Progress


@contextmanager
def progress_bar(console: Console | None = None) -> Iterator[Progress]:
    """Show on standard error, if it is a terminal, what is being done, how much of it, and the time left."""
    console = console or Console(stderr=True)
    columns = TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn()
    with Bar(*columns, TimeRemainingColumn(), console=console, disable=not console.is_terminal, transient=True) as bar:
        row = bar.add_task("opening the models", total=None)

        def show(what: str, done: int, total: int) -> None:
            if done == 0:  # the time left is that of this work, not of what was done before
                bar.reset(row, total=total, description=what)
            bar.update(row, completed=done)

        yield show
