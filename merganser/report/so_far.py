"""The report so far: a page with the scores of a running comparison, marked as partial."""

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from merganser.report import formats
from merganser.report.templates import open_templates

FOLDER = Path(".dvcfleet/so-far")  # not in report/, which is an output of a stage
PAGE = FOLDER / "index.html"


class EntryScores(NamedTuple):
    """An entry's scores on the tasks evaluated so far, and their mean once it has all."""

    entry: str
    values: Mapping[str, float]
    mean: float | None


def write_so_far(scores: Mapping[tuple[str, str], float], entries: Sequence[str], tasks: Sequence[str]) -> None:
    """Write the page; `scores`: by entry and task, as fractions."""
    environment = open_templates("merganser.report")
    environment.filters |= {"percent": formats.percent, "breakable": formats.breakable}
    text = environment.get_template("so_far.html.j2").render(
        lines=sorted(_lines(scores, entries, tasks), key=lambda line: (line.mean is None, -(line.mean or 0.0))),
        tasks=tasks,
        known=len(scores),
        wanted=len(entries) * len(tasks),
    )
    FOLDER.mkdir(parents=True, exist_ok=True)
    draft = PAGE.with_suffix(f".{os.getpid()}.draft")
    draft.write_text(text, encoding="utf-8")
    draft.replace(PAGE)  # a browser that loads it again finds a whole page


def _lines(
    scores: Mapping[tuple[str, str], float], entries: Sequence[str], tasks: Sequence[str]
) -> Iterator[EntryScores]:
    for entry in entries:
        values = {task: scores[entry, task] for task in tasks if (entry, task) in scores}
        if values:
            yield EntryScores(entry, values, fmean(values.values()) if len(values) == len(tasks) else None)
