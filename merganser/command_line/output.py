"""Plain-text tables, one line per row at any terminal width; and progress: a bar, or a line every half minute."""

import shutil
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from merganser.descriptions import data_of, default_of, or_joints, parts_of
from merganser.progress import Progress
from merganser.terminal.secrets import printable


def print_methods(described: list[dict[str, Any]]) -> None:
    """Print one line per method, as wide as the terminal if there is one."""
    rows = [
        (m["name"], m["family"], data_of(m), parts_of(m), ", ".join(m["needs"]) + or_joints(m), m["summary"])
        for m in described
    ]
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    print_table(("method", "family", "data", "parts per task", "needs", "what it does"), rows, width)


def print_method(method: dict[str, Any]) -> None:
    """Print one method and its parameters."""
    print(f"{method['name']}: {method['summary']}")
    parts = "with" if method["parts_per_task"] else "without"
    needs = " and ".join(method["needs"]) + or_joints(method)
    print(f"needs {needs}, {method['class']}, cost {method['cost']}, {parts} parts per task; {method['paper']}")
    print(f"formula: {method['formula']}")
    print(f"law: {method['law']}")
    if method["parameters"]:
        rows = ((each["name"], each["type"], default_of(each), each["bounds"]) for each in method["parameters"])
        print_table(("parameter", "type", "default", "bounds"), rows)
    else:
        print("no parameters")


def print_table(headings: tuple[str, ...], rows: Iterable[tuple[str, ...]], most: int | None = None) -> None:
    """Print columns as wide as their longest cell, lines cut to `most` characters."""
    lines = [headings, *(tuple(map(printable, row)) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        text = "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        print(text if most is None or len(text) <= most else f"{text[: most - 1]}…")


OPENING = "opening the models"
EVERY_S = 30.0


@contextmanager
def progress_bar(console: Console | None = None, every_s: float = EVERY_S) -> Iterator[Progress]:
    """Show on standard error what is done, how much of it, and the time left or spent."""
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
