"""Papers' figures next to measured ones: of the last run, or of all suites that ran, with reasons for differences.

A suite's figures are in its last report: this comparison's, that of one sharing its cache, or else that of the newest
run whose report is in DVC's cache. Nothing is checked out, and nothing runs.
"""

import csv
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from dvcfleet.repository import opened
from merganser.config.loading import load_params
from merganser.config.published import MEAN, SEARCHED
from merganser.errors import InputError
from merganser.flows.evidence.runs.run import KEPT, read_run, run_names
from merganser.flows.repositories.identity import comparisons_sharing_cache
from merganser.flows.steps.answer import REPORT, Row, read_table
from merganser.flows.suites.files import suite_names
from merganser.flows.suites.ready import PARAMS, load_suite
from merganser.report.formats import percent

FIGURES = "published.csv"  # of a report
TABLE = ("paper", "table", "protocol", "checkpoints")
NUMBERS = ("ours", "published", "difference", "stderr")
CHECKPOINTS = {"these": "these checkpoints", "others": "other checkpoints, trained alike"}
UNEXPLAINED = "not explained: the same checkpoints, and the values that it names"
Figure = Mapping[str, Any]  # a line of the report's table of published figures


@dataclass(frozen=True)
class Compared:
    """An entry next to a row of a paper; `ours` and `theirs` are the means over figures that both have.

    `figures` counts those with a known sampling error, `beyond` those that differ by more than it; `why`: reasons
    why the experiments are not the same.
    """

    paper: str
    table: str
    entry: str
    figures: int
    beyond: int
    ours: float | None
    theirs: float | None
    why: str

    @property
    def is_within(self) -> bool:
        """Tell whether all figures are within our sampling error."""
        return self.figures > 0 and not self.beyond

    @property
    def difference(self) -> float | None:
        """Return by how much our mean is higher."""
        return None if self.ours is None or self.theirs is None else self.ours - self.theirs


@dataclass(frozen=True)
class Tally:
    """The figures of one paper over all suites; `why` splits those beyond our sampling error."""

    paper: str
    figures: int
    within: int
    explained: int
    unexplained: int


@dataclass(frozen=True)
class SuiteRows:
    """A suite's last report next to the papers; `place`: the comparison's folder, or the run's name."""

    suite: str
    place: str
    rows: tuple[Compared, ...]

    @property
    def by_paper(self) -> dict[str, list[Compared]]:
        """Return the rows of each paper."""
        return _by_paper(self.rows)


@dataclass(frozen=True)
class AllSuites:
    """The figures of each paper and of each suite that ran, and the names of other suites with figures."""

    papers: tuple[Tally, ...]
    suites: tuple[SuiteRows, ...]
    not_run: tuple[str, ...]


def read_figures(root: Path) -> list[Figure]:
    """Read the figures of a repository's report; raise InputError if there are none to compare."""
    if load_params(root / PARAMS).published is None:
        raise InputError(f"{PARAMS}: names no published figures; write published: {{source: FILE}} (docs/suites.md)")
    return [plain(line) for line in read_table(root, FIGURES)]


def read_all(root: Path) -> AllSuites:
    """Read the papers' figures of all suites that ran."""
    suites_read: dict[str, SuiteRows] = {}
    for place, params, path in _reports(root):
        name = _suite_of(params)
        if name is not None and name not in suites_read and path and path.is_file():
            with path.open(newline="", encoding="utf-8") as file:
                suites_read[name] = SuiteRows(name, place, tuple(compared(map(plain, csv.DictReader(file)))))
    papers = _by_paper(row for suite in suites_read.values() for row in suite.rows)
    tallies = tuple(_tally(paper, rows) for paper, rows in sorted(papers.items()))
    run = {name.split()[0] for name in suites_read}
    others = (name for name in suite_names(root) if name not in run)
    return AllSuites(tallies, tuple(suites_read.values()), tuple(name for name in others if _has_figures(root, name)))


def plain(line: Row) -> Figure:
    """Return a line of the table with numbers, truth values, and None for empty cells."""
    row: dict[str, Any] = {key: value or None for key, value in line.items()}
    row |= {key: float(line[key]) if line[key] else None for key in NUMBERS}
    return row | {"beyond": {"True": True, "False": False}.get(line["beyond"])}


def compared(figures: Iterable[Figure]) -> Iterator[Compared]:
    """Summarise figures by entry and table."""
    for (paper, table, entry), group in groupby(figures, lambda line: (line["paper"], line["table"], line["entry"])):
        lines = list(group)
        judged = [line["beyond"] for line in lines if line["beyond"] is not None]
        means = ((line["ours"], line["published"]) for line in lines if line["column"] == MEAN)
        ours, theirs = next(means, (None, None))
        reasons = [lines[0]["note"], CHECKPOINTS["others"] if lines[0]["checkpoints"] == "others" else None]
        why = "; ".join(filter(None, reasons)) or UNEXPLAINED
        yield Compared(paper, table, entry, len(judged), sum(judged), ours, theirs, why)


def figure_lines(figures: list[Figure]) -> Iterator[str]:
    """Return lines with each table's figures: ours with sampling error, theirs, the difference, a mark if beyond."""
    if not figures:
        yield "the published figures have other entries, tasks or means than this comparison"
        return
    widths = [max(len(line[key]) for line in figures) for key in ("entry", "column")]
    for (paper, table, protocol, checkpoints), lines in groupby(figures, lambda line: [line[key] for key in TABLE]):
        yield f"{paper}, {table}; {CHECKPOINTS[checkpoints]}"
        yield f"  {protocol}"
        for line in lines:
            yield f"  {line['entry']:{widths[0]}}  {line['column']:{widths[1]}}  {_numbers(line)}".rstrip()
    beyond, known = (sum(line["beyond"] in which for line in figures) for which in ([True], [True, False]))
    yield f"{beyond} of {known} differences are beyond our sampling error (95 %)"


def all_lines(all_suites: AllSuites) -> Iterator[str]:
    """Return lines with the number of reproduced figures of each paper, and each suite's differences with reasons."""
    for each in all_suites.papers:
        yield (
            f"{each.paper}: {each.within} of {each.figures} figures within our sampling error, {each.explained} "
            f"beyond it by other experiments, {each.unexplained} by the same one"
        )
    for suite in all_suites.suites:
        yield f"{suite.suite}: {suite.place}"
        for paper, rows in suite.by_paper.items():
            yield f"  {paper}"
            if within := [f"{row.entry} ({row.table})" for row in rows if row.is_within]:
                yield f"    within our sampling error (95 %): {', '.join(within)}"
            yield from (f"    {_beyond(row)}" for row in rows if row.beyond)
    if all_suites.not_run:
        yield f"not run here: {', '.join(all_suites.not_run)}"


def _beyond(row: Compared) -> str:
    means = "" if row.difference is None else f", mean {percent(row.ours, 2)} against {percent(row.theirs, 2)}"
    return f"{row.entry}, {row.table}: {row.beyond} of {row.figures} beyond{means}; {row.why}"


def _reports(root: Path) -> Iterator[tuple[str, Mapping[str, Any], Path | None]]:
    """Yield each report's place, params.yaml and figures: folders first, by dvc.lock, then the newest run."""
    with opened(root) as repo:
        for folder in (root.resolve(), *comparisons_sharing_cache(repo)):
            if all((folder / name).is_file() for name in KEPT):
                made_by = read_run(repo, str(folder)).stages.get("report", {}).get("params", {})
                yield str(folder), made_by.get(PARAMS.name, {}), folder / REPORT / FIGURES
        for name in run_names(root):
            run = read_run(repo, name)
            yield f"run {name}", run.params, run.cached(run.listing(Path(REPORT)).get(FIGURES))


def _suite_of(params: Mapping[str, Any]) -> str | None:
    """Return the suite of a comparison's figures, and whether it is the searched one; None if it has no figures."""
    published = params.get("published")
    source = published.get("source") if isinstance(published, dict) else None
    if not isinstance(source, str):
        return None
    methods = params.get("methods")  # of any form: `dvc exp save` checks nothing
    entries = methods.values() if isinstance(methods, dict) else ()
    searched = any(isinstance(each, dict) and str(each.get("reads", "")).startswith(SEARCHED) for each in entries)
    return Path(source).parent.name + (" --grids" if searched else "")


def _has_figures(root: Path, name: str) -> bool:
    try:
        return load_suite(root, name).published is not None
    except InputError:
        return False


def _by_paper(rows: Iterable[Compared]) -> dict[str, list[Compared]]:
    by_paper: dict[str, list[Compared]] = {}
    for row in rows:
        by_paper.setdefault(row.paper, []).append(row)
    return by_paper


def _tally(paper: str, rows: list[Compared]) -> Tally:
    figures, beyond = sum(row.figures for row in rows), sum(row.beyond for row in rows)
    unexplained = sum(row.beyond for row in rows if row.why == UNEXPLAINED)
    return Tally(paper, figures, figures - beyond, beyond - unexplained, unexplained)


def _numbers(line: Figure) -> str:
    error = "" if line["stderr"] is None else f"±{100 * line['stderr']:.2f}"
    numbers = f"{100 * line['ours']:6.2f} {error:<6} published {100 * line['published']:6.2f}"
    judged = {True: "beyond", False: "within", None: ""}[line["beyond"]]
    return f"{numbers}  {100 * line['difference']:+7.2f} {judged:<6}  {line['note'] or ''}"
