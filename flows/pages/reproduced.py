"""What papers report beside what the last run measured, as text and as plain data."""

from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

from merganser.config.loading import load_params
from merganser.errors import InputError
from merganser.flows.steps.answer import Row, read_table
from merganser.flows.suites.ready import PARAMS

TABLE = ("paper", "table", "protocol", "checkpoints")
NUMBERS = ("ours", "published", "difference", "stderr")
CHECKPOINTS = {"these": "these checkpoints", "others": "other checkpoints, trained alike"}


def read_differences(root: Path) -> list[dict[str, Any]]:
    """Read the figures of the report in a repository, a line each; raise InputError where there are none to compare."""
    if load_params(root / PARAMS).published is None:
        raise InputError(f"{PARAMS}: names no published figures; write published: {{source: FILE}} (docs/suites.md)")
    return [plain(line) for line in read_table(root, "published.csv")]


def difference_lines(found: list[dict[str, Any]]) -> Iterator[str]:
    """Say each table's figures: ours with its sampling error, theirs, the difference, and whether it is beyond that."""
    if not found:
        yield "the published figures have other entries, tasks or means than this comparison"
        return
    widths = [max(len(line[key]) for line in found) for key in ("entry", "column")]
    for (paper, table, protocol, checkpoints), lines in groupby(found, lambda line: [line[key] for key in TABLE]):
        yield f"{paper}, {table}; {CHECKPOINTS[checkpoints]}"
        yield f"  {protocol}"
        for line in lines:
            yield f"  {line['entry']:{widths[0]}}  {line['column']:{widths[1]}}  {_said(line)}".rstrip()
    beyond, known = (sum(line["beyond"] in which for line in found) for which in ([True], [True, False]))
    yield f"{beyond} of {known} differences are beyond our sampling error (95 %)"


def _said(line: dict[str, Any]) -> str:
    error = "" if line["stderr"] is None else f"±{100 * line['stderr']:.2f}"
    numbers = f"{100 * line['ours']:6.2f} {error:<6} published {100 * line['published']:6.2f}"
    judged = {True: "beyond", False: "within", None: ""}[line["beyond"]]
    return f"{numbers}  {100 * line['difference']:+7.2f} {judged:<6}  {line['note'] or ''}"


def plain(line: Row) -> dict[str, Any]:
    """Return a line of the table with numbers, truth values, and None for empty cells."""
    found: dict[str, Any] = {key: value or None for key, value in line.items()}
    found |= {key: float(line[key]) if line[key] else None for key in NUMBERS}
    return found | {"beyond": {"True": True, "False": False}.get(line["beyond"])}
