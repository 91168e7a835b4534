"""Write the docs' figures from a run's file: `python -m tools.figures report/results.csv`.

docs/results.md gets the tables of that file. All other pages get theirs from docs/results.md (without a file, these
alone): in a table the columns that `COLUMNS` names, of the entry that a row names, and in the text each number before
`<!-- ENTRY COLUMN -->`, with as many digits as it had; before `<!-- SUITE.ENTRY COLUMN -->` that of docs/evidence. A
test holds the pages to it.
"""

import csv
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tools.evidence import KEPT, figures, read_runs
from tools.evidence import PAGES as EVIDENCE

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "docs/results.md"
COLUMNS = {
    "mean, %": "mean",
    "mean accuracy, %": "mean",
    "of individual, %": "individual",
    "memory, %": "memory",
    "memory per task, %": "memory",
}
OF_CSV = {"mean": "mean", "individual": "normalised_score", "memory": "amr"}
DATA = {"validation data": "validation", "test-time adaptation": "unlabelled"}
_QUOTED = re.compile(r"(?P<number>\d+(?:\.\d+)?)(?P<unit>(?: %)?<!-- (?P<entry>[\w.-]+) (?P<column>\w+) -->)")
_SECTION = re.compile(
    r"(?P<head>## (?:One model for all tasks|Parts per task)(?:, from data)?\n\n)(?P<table>(?:\|.*\n)+)"
)

Figures = Mapping[str, Mapping[str, float]]  # by entry and column, in per cent


def pages() -> list[Path]:
    """List the pages that may quote figures."""
    return [ROOT / "README.md", *sorted(set((ROOT / "docs").glob("*.md")) - {RESULTS, *EVIDENCE})]


def read_figures(results: str) -> Figures:
    """Read the tables of docs/results.md."""
    found: dict[str, dict[str, float]] = {}
    for section in _SECTION.finditer(results):
        header, _, *rows = map(_cells, section["table"].splitlines())
        for row in rows:
            named = zip(header, row, strict=True)
            found[row[0].strip("`")] = {COLUMNS[head]: float(cell) for head, cell in named if head in COLUMNS}
    return found


def quotable() -> Figures:
    """Return all figures that pages may quote: those of docs/results.md, and of real suites as `SUITE.ENTRY`."""
    return {**read_figures(RESULTS.read_text()), **figures(read_runs(KEPT))}


def with_tables(results: str, lines: Sequence[Mapping[str, str]]) -> str:
    """Return docs/results.md with the tables of a report's results.csv."""

    def table(section: re.Match[str]) -> str:
        header, rule, *_ = section["table"].splitlines()
        parts, from_data = "Parts" in section["head"], "from data" in section["head"]
        members = [line for line in lines if _is_parts(line) is parts and (line["data"] != "no data") is from_data]
        members.sort(key=lambda line: float(line["mean"]))
        rows = [[_cell(line, head) for head in _cells(header)] for line in members]
        return "\n".join([f"{section['head']}{header}", rule, *(f"| {' | '.join(row)} |" for row in rows), ""])

    return _SECTION.sub(table, results)


def with_figures(page: str, known: Figures) -> str:
    """Return a page with its figures as they are known; raise KeyError for a quoted entry or column that is not."""
    quoted = _QUOTED.sub(lambda one: _as(one["number"], known[one["entry"]][one["column"]]) + one["unit"], page)
    return "".join(_with_cells(quoted.splitlines(keepends=True), known))


def _with_cells(lines: Sequence[str], known: Figures) -> Iterator[str]:
    header: list[str] = []
    for line in lines:
        header = (header or _cells(line)) if line.startswith("|") else []
        entry = next((name for name in re.findall(r"`(\w+)`", line) if name in known), None)
        if entry is None or not COLUMNS.keys() & set(header):
            yield line
            continue
        cells = [
            _as(cell, known[entry][COLUMNS[head]]) if head in COLUMNS else cell
            for head, cell in zip(header, _cells(line), strict=True)
        ]
        yield f"| {' | '.join(cells)} |\n"


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def _cell(line: Mapping[str, str], head: str) -> str:
    if head in ("entry", "data"):
        return f"`{line['entry']}`" if head == "entry" else DATA[line["data"].partition(",")[0]]
    return f"{100 * float(line[OF_CSV[COLUMNS[head]] if head in COLUMNS else head]):.1f}"


def _is_parts(line: Mapping[str, str]) -> bool:
    return line["group"] == "parts" or line["method"] == "individual"


def _as(before: str, value: float) -> str:
    """Write a value with as many digits after the point as before."""
    return f"{value:.{len(before.partition('.')[2])}f}"


def main(files: Sequence[str]) -> None:
    """Write the pages."""
    for file in files:
        with open(file, newline="", encoding="utf-8") as table:
            RESULTS.write_text(with_tables(RESULTS.read_text(), list(csv.DictReader(table))))
    known = quotable()
    for page in pages():
        page.write_text(with_figures(page.read_text(), known))


if __name__ == "__main__":
    main(sys.argv[1:])
