"""The tables as CSV: for people, and for `dvc plots`."""

import csv
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from merganser.report.interference import LayerInterference
from merganser.report.rows import Row

MEASURES = ("mean", "normalised_accuracy", "accuracy_drop_rate", "amr", "wall_s", "peak_rss_bytes")


def write_tables(folder: Path, rows: Sequence[Row], layers: Sequence[LayerInterference], tasks: Sequence[str]) -> None:
    """Write `results.csv` and, for the plots, `plots/accuracy.csv`, `plots/cost.csv` and `plots/interference.csv`."""
    plots = folder / "plots"
    results = [
        [r.entry, r.method, r.group, *(r.scores.accuracies[task] for task in tasks), *_measures(r).values()]
        for r in rows
    ]
    write_csv(folder / "results.csv", ["entry", "method", "group", *tasks, *MEASURES], results)
    accuracies = [[r.entry, task, r.scores.accuracies[task]] for r in rows for task in tasks]
    write_csv(plots / "accuracy.csv", ["entry", "task", "accuracy"], accuracies)
    cost = [[r.entry, *(_measures(r)[name] for name in ("normalised_accuracy", "amr", "wall_s"))] for r in rows]
    write_csv(plots / "cost.csv", ["entry", "normalised_accuracy", "amr", "wall_s"], cost)
    if layers:
        write_csv(plots / "interference.csv", LayerInterference._fields, layers)


def summary(rows: Sequence[Row]) -> dict[str, dict[str, Any]]:
    """Give each entry's scores for `dvc metrics`: only what depends on nothing but the inputs, so no times."""
    return {
        row.entry: {
            "accuracy": dict(row.scores.accuracies),
            **{name: value for name, value in _measures(row).items() if name not in ("wall_s", "peak_rss_bytes")},
        }
        for row in rows
    }


def _measures(row: Row) -> dict[str, float | None]:
    scores = row.scores
    values = (scores.mean, scores.normalised, scores.drop_rate, row.amr, row.wall_s, row.peak_bytes)
    return dict(zip(MEASURES, values, strict=True))


def write_csv(path: Path, header: Sequence[str], lines: Iterable[Sequence[Any]]) -> None:
    """Write a table: None becomes an empty cell."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(header)
        writer.writerows(lines)
