"""All that papers report beside all suites that were run: what of each paper reproduces, what does not, and why.

A suite's figures are its last report's: that of this comparison, of one that shares its cache, or, where neither
has the suite, of the newest run whose report is in DVC's cache. Nothing is checked out, and nothing runs.
"""

import csv
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from io import StringIO
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

from dvcfleet.repository import opened
from merganser.config.published import MEAN, SEARCHED
from merganser.errors import InputError
from merganser.flows.evidence.run_diff import read_run, run_names
from merganser.flows.pages.reproduced import CHECKPOINTS, plain
from merganser.flows.repositories.shared_caches import comparisons_sharing_cache
from merganser.flows.steps.answer import REPORT
from merganser.flows.suites.files import suite_names
from merganser.flows.suites.ready import PARAMS, load_suite
from merganser.limits import parse_yaml
from merganser.outputs import write_whole
from merganser.report import formats
from merganser.report.templates import open_templates

TABLE = "published.csv"
UNEXPLAINED = "not explained: the same checkpoints, and the values that it names"


class Compared(NamedTuple):
    """An entry beside a row of a paper: how many figures, and their means where both have one."""

    paper: str
    table: str
    entry: str
    figures: int  # of which our sampling error is known
    beyond: int  # differ by more than that
    ours: float | None
    theirs: float | None
    why: str  # what keeps it from being the same experiment

    @property
    def difference(self) -> float | None:
        """Return by how much our mean is higher."""
        return None if self.ours is None or self.theirs is None else self.ours - self.theirs


class Tally(NamedTuple):
    """The figures of one paper."""

    paper: str
    figures: int
    within: int
    explained: int  # beyond our sampling error, by rows that are another experiment
    unexplained: int


@dataclass(frozen=True)
class Found:
    """What a suite's last report has of the papers; `place`: the folder of the comparison, or the run's name."""

    suite: str
    place: str
    rows: tuple[Compared, ...]

    @property
    def by_paper(self) -> dict[str, "Found"]:
        """Return the rows of each paper."""
        papers = dict.fromkeys(row.paper for row in self.rows)
        return {paper: replace(self, rows=tuple(row for row in self.rows if row.paper == paper)) for paper in papers}

    @property
    def reproduced(self) -> list[Compared]:
        """Return the rows of which no figure is beyond our sampling error."""
        return [row for row in self.rows if row.figures and not row.beyond]

    @property
    def not_reproduced(self) -> list[Compared]:
        """Return the others."""
        return [row for row in self.rows if row.beyond]


@dataclass(frozen=True)
class All:
    """All suites with published figures: those that were run, and the names of those that were not."""

    found: tuple[Found, ...]
    not_run: tuple[str, ...]

    @property
    def tallies(self) -> list[Tally]:
        """Add up the figures by paper, over the suites."""
        rows = sorted((row for each in self.found for row in each.rows), key=attrgetter("paper"))
        return [_tally(paper, list(group)) for paper, group in groupby(rows, attrgetter("paper"))]


def read_all(root: Path) -> All:
    """Read what all suites that were run have of the papers."""
    found: dict[str, Found] = {}
    for place, params, text in _reports(root):
        name = _suite_of(params)
        if name is not None and name not in found:
            found[name] = Found(name, place, tuple(compared(map(plain, csv.DictReader(StringIO(text))))))
    run = {name.split()[0] for name in found}
    named = (name for name in suite_names(root) if name not in run)
    return All(tuple(found.values()), tuple(name for name in named if _has_figures(root, name)))


def compared(lines: Iterable[Mapping[str, Any]]) -> Iterator[Compared]:
    """Sum up the lines of `published.csv`: one an entry and table."""
    for (paper, table, entry), group in groupby(lines, lambda line: (line["paper"], line["table"], line["entry"])):
        figures = list(group)
        judged = [line["beyond"] for line in figures if line["beyond"] is not None]
        means = [(line["ours"], line["published"]) for line in figures if line["column"] == MEAN]
        ours, theirs = means[0] if means else (None, None)
        other = figures[0]["checkpoints"] == "others"
        reasons = [*([figures[0]["note"]] if figures[0]["note"] else []), *([CHECKPOINTS["others"]] if other else [])]
        yield Compared(paper, table, entry, len(judged), sum(judged), ours, theirs, "; ".join(reasons) or UNEXPLAINED)


def all_lines(every: All) -> Iterator[str]:
    """Say for each paper how many of its figures reproduce, and for each suite which do not and why."""
    for tally in every.tallies:
        yield f"{tally.paper}: {_counted(tally)}"
    for each in every.found:
        yield f"{each.suite}: {each.place}"
        for paper, of_paper in each.by_paper.items():
            yield f"  {paper}"
            if of_paper.reproduced:
                yield f"    within our sampling error (95 %): {', '.join(map(_named, of_paper.reproduced))}"
            for row in of_paper.not_reproduced:
                yield f"    {row.entry}, {row.table}: {row.beyond} of {row.figures} beyond{_means(row)}; {row.why}"
    if every.not_run:
        yield f"not run here: {', '.join(every.not_run)}"


def as_json(every: All) -> dict[str, Any]:
    """Return all of it as plain data."""
    return {
        "papers": [tally._asdict() for tally in every.tallies],
        "suites": [
            {"suite": each.suite, "place": each.place, "rows": [row._asdict() for row in each.rows]}
            for each in every.found
        ],
        "not_run": list(every.not_run),
    }


def write_all_page(every: All, out: Path) -> None:
    """Write it as a page: one HTML file that loads nothing."""
    environment = open_templates("merganser.report")
    environment.filters |= {"signed": formats.signed, "percent": partial(formats.percent, digits=2)}
    write_whole(out, environment.get_template("reproduced_all.html.j2").render(all=every))


def _reports(root: Path) -> Iterator[tuple[str, Mapping[str, Any], str]]:
    """Give each comparison's place, params.yaml and table of figures: the folders first, then runs from the newest."""
    with opened(root) as repo:
        for folder in (root.resolve(), *comparisons_sharing_cache(repo)):
            table, params = folder / REPORT / TABLE, _made_by(folder)
            if params and table.is_file():
                yield str(folder), params, table.read_text(encoding="utf-8")
        for name in run_names(root):
            run = read_run(root, name)
            text = _of_cache(repo, run.files.get(REPORT))
            if text is not None:
                yield f"run {name}", run.params, text


def _made_by(folder: Path) -> Mapping[str, Any]:
    """Return the choices that a folder's report was made by, of its dvc.lock: those in use may be others by now."""
    path = folder / "dvc.lock"
    lock = _content(path.read_text(encoding="utf-8"), str(path)) if path.is_file() else {}
    params: Mapping[str, Any] = lock.get("stages", {}).get("report", {}).get("params", {}).get(PARAMS.name, {})
    return params


def _of_cache(repo: Any, md5: str | None) -> str | None:
    """Return the table of a report in DVC's cache; None where either is not there."""
    if md5 is None or not (folder := Path(repo.cache.local.oid_to_path(md5))).is_file():
        return None
    files = {each["relpath"]: each["md5"] for each in json.loads(folder.read_text(encoding="utf-8"))}
    path = Path(repo.cache.local.oid_to_path(files[TABLE])) if TABLE in files else None
    return path.read_text(encoding="utf-8") if path and path.is_file() else None


def _content(text: str, name: str) -> Mapping[str, Any]:
    found = parse_yaml(text, name)
    return found if isinstance(found, dict) else {}


def _suite_of(params: Mapping[str, Any]) -> str | None:
    """Return which suite's figures a comparison names, and whether it is its searched one; None for none."""
    source = (params.get("published") or {}).get("source")
    if not source:
        return None
    searched = any(str(each.get("reads", "")).startswith(SEARCHED) for each in params.get("methods", {}).values())
    return Path(source).parent.name + (" --grids" if searched else "")


def _has_figures(root: Path, name: str) -> bool:
    try:
        return load_suite(root, name).published is not None
    except InputError:
        return False


def _tally(paper: str, rows: list[Compared]) -> Tally:
    figures, beyond = (sum(getattr(row, name) for row in rows) for name in ("figures", "beyond"))
    unexplained = sum(row.beyond for row in rows if row.why == UNEXPLAINED)
    return Tally(paper, figures, figures - beyond, beyond - unexplained, unexplained)


def _counted(tally: Tally) -> str:
    return (
        f"{tally.within} of {tally.figures} figures within our sampling error, {tally.explained} beyond it by other "
        f"experiments, {tally.unexplained} by the same one"
    )


def _named(row: Compared) -> str:
    return f"{row.entry} ({row.table})"


def _means(row: Compared) -> str:
    if row.ours is None or row.theirs is None:
        return ""
    return f", mean {100 * row.ours:.2f} against {100 * row.theirs:.2f}"
