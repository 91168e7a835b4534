"""What a run came to, in a few lines: the best entries with their errors, what changed, where the report is."""

import csv
import json
from collections.abc import Callable, Iterator, Set
from pathlib import Path

from flows.previous_metrics import kept_metrics

REPORT = "report"  # the stage, and its folder
BEST = 3
GROUPS = {"single": "one model for all tasks", "parts": "a part per task"}
Row = dict[str, str]


def say_answer(done: Set[str], folder: Path, say: Callable[[str], None]) -> None:
    """Say it if the run wrote the report; `folder`: where the metrics before the run were kept."""
    if REPORT not in done:
        return
    with Path(REPORT, "results.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    for line in (*best_lines(rows), *changed_lines(kept_metrics(folder), json.loads(Path("metrics.json").read_text()))):
        say(line)
    say(f"the report: {REPORT}/index.html")


def best_lines(rows: list[Row]) -> Iterator[str]:
    """Name the best entries of each group, by their mean over the tasks in hundredths, ± its sampling error."""
    for group, title in GROUPS.items():
        members = sorted((row for row in rows if row["group"] == group), key=lambda row: -float(row["mean"]))
        if not members:
            continue
        yield f"best of {_counted(members)} with {title}:"
        width = max(len(row["entry"]) for row in members[:BEST])
        yield from (f"  {row['entry']:{width}}  {_score(row)}  {row['data']}" for row in members[:BEST])
    references = [f"{row['entry']} {_score(row)}" for row in rows if row["group"] == "reference"]
    if references:
        yield f"beside them: {', '.join(references)}"


def _counted(rows: list[Row]) -> str:
    return "1 entry" if len(rows) == 1 else f"{len(rows)} entries"


def _score(row: Row) -> str:
    error = f" ± {100 * float(row['stderr']):.1f}" if row["stderr"] else ""
    return f"{100 * float(row['mean']):.1f}{error}"


def changed_lines(before: dict[str, dict[str, float]], now: dict[str, dict[str, float]]) -> Iterator[str]:
    """Say which entries' means are new, gone or other than before the run; nothing where there were none before."""
    if not before:
        return
    moved = {name: now[name]["mean"] - before[name]["mean"] for name in now if name in before}
    moved = {name: by for name, by in sorted(moved.items(), key=lambda pair: -abs(pair[1])) if by}
    parts = {
        "new": [name for name in now if name not in before],
        "gone": [name for name in before if name not in now],
        "changed": [f"{name} {100 * by:+.1f}" for name, by in moved.items()],
    }
    said = [f"{len(names)} {word} ({_some(names)})" for word, names in parts.items() if names]
    yield f"since the last run: {'; '.join(said) or 'no score changed'}"


def _some(names: list[str]) -> str:
    return ", ".join(names[:BEST]) + (", ..." if len(names) > BEST else "")
