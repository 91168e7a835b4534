"""Tables as CSV: for people, and for `dvc plots`."""

import csv
from collections.abc import Iterable, Sequence
from math import isnan
from pathlib import Path
from typing import Any


def write_csv(path: Path, header: Sequence[str], lines: Iterable[Sequence[Any]]) -> None:
    """Write a table: None and NaN become empty cells."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(header)
        writer.writerows([None if isinstance(v, float) and isnan(v) else v for v in line] for line in lines)
