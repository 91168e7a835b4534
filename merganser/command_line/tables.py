"""Plain-text tables, one line per row at any terminal width."""

import shutil
import sys
from collections.abc import Iterable
from typing import Any

from merganser.descriptions import data_of, default_of, or_joints, parts_of


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
    lines = [headings, *rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        text = "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        print(text if most is None or len(text) <= most else f"{text[: most - 1]}…")
