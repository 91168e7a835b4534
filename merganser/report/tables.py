"""Tables as CSV: for people, and for `dvc plots`."""

import csv
from collections.abc import Iterable, Mapping, Sequence
from math import isnan
from pathlib import Path
from typing import Any

Table = tuple[Sequence[str], Iterable[Sequence[Any]]]  # a header, and lines
Tables = Mapping[str, Table | str]  # by their files' names; text of another form as it is


def write_csv(path: Path, header: Sequence[str], lines: Iterable[Sequence[Any]]) -> None:
    """Write a table: None and NaN become empty cells."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(header)
        writer.writerows([None if isinstance(v, float) and isnan(v) else v for v in line] for line in lines)


def write_tables(folder: Path, tables: Tables) -> None:
    """Write tables, and texts, into a folder."""
    for name, table in tables.items():
        if isinstance(table, str):
            (folder / name).write_text(table)
        else:
            write_csv(folder / name, *table)
