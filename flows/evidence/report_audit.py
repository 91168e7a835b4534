"""Compute the report again and compare it with its files, and its published figures with the papers'. Imports torch."""

import re
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from dvcfleet.disk import read_json
from dvcfleet.errors import some
from dvcfleet.git import git_if_any
from dvcfleet.lineage.steps import Finding, Lineage
from merganser.config.loading import load_params
from merganser.errors import InputError
from merganser.flows.evidence.findings import DifferenceKind, steps_writing
from merganser.flows.suites.published import PAPERS
from merganser.flows.suites.ready import figures_at
from merganser.limits import read_yaml
from merganser.report.comparison import Comparison
from merganser.report.formats import PARQUET
from merganser.report.origin import FILE, Origin
from merganser.report.sections import changes, origin
from merganser.tasks import stages
from merganser.tasks.report import PAGE, write_report
from merganser.tasks.stages import PUBLISHED, REPORT, SCORES, SUMMARY

# Of a report by a version that had all numbers in metrics.json, what has another form now; dvc.lock fixes its bytes.
OTHER_FORM = {PAGE, "confusions.csv", "entries", "plots"}
_CHANGES = re.compile(r'<section id="changes">.*?</section>', re.S)


def check_report(lineage: Lineage) -> Iterator[Finding]:
    """Find tables, numbers and the page of the report that do not follow from its inputs.

    Runs in a Merganser project's folder whose files are as recorded. Plots are not drawn again. Changes since
    another run are in no input and are not compared. The person, time and machine come from origin.json, which
    dvc.lock fixes.
    """
    for step in steps_writing(lineage, REPORT):
        is_earlier = all(item.path != str(SCORES) for item in step.outputs)
        message = f"differs from the report that its inputs give; `merganser run --force {step.stage}` recreates it"
        for name in _differing(is_earlier):
            yield Finding(DifferenceKind.REPORT, str(name), message, (step.stage,))


def _origin() -> Origin | None:
    """Return the report's origin: person, time, machine; None for a report of earlier versions, or a damaged file."""
    try:
        content = read_json(REPORT / FILE)
        return Origin.from_json(content) if content else None
    except (OSError, ValueError, TypeError, AttributeError):
        return None


def _differing(is_earlier: bool) -> Iterator[Path]:
    """List the files that differ; `is_earlier`: the report is of a version with all numbers in metrics.json."""
    comparison = Comparison(load_params(), stages, {changes.read: None, origin.read: _origin()})
    now = {SCORES: comparison.numbers, SUMMARY: comparison.summary}
    for path, numbers in ({SUMMARY: comparison.numbers} if is_earlier else now).items():
        if read_json(path) != numbers:
            yield path
    plots = {path.stem: path.read_text(encoding="utf-8") for path in sorted((REPORT / "plots").glob("*.svg"))}
    with TemporaryDirectory(prefix="merganser-report-") as name:
        folder = Path(name)
        write_report(folder, comparison, plots)
        made, there = (
            {path.relative_to(root) for path in root.rglob("*") if path.is_file()} for root in (folder, REPORT)
        )
        for path in sorted((made | there) - {Path("changes.csv"), Path("worse.csv")}):
            if is_earlier and (path.name in OTHER_FORM or path.parts[0] in OTHER_FORM):
                continue
            if path.suffix == PARQUET and path not in there:
                continue  # a report of an earlier version; of this one, dvc.lock names the file
            if path not in made & there or _content(folder / path) != _content(REPORT / path):
                yield REPORT / path


def _content(path: Path) -> str | bytes:
    """Return a file's bytes; for the page, its text without the changes since another run."""
    if path.name != PAGE:
        return path.read_bytes()
    return " ".join(_CHANGES.sub("", path.read_text(encoding="utf-8")).split())


def check_papers(lineage: Lineage) -> Iterator[Finding]:
    """Find papers' files that changed since the stage `publish` ran, and now give other figures.

    Runs in a Merganser project's folder. The stage reads the file that `use` wrote, which a user may edit; no stage
    reads the papers' files.
    """
    for step in steps_writing(lineage, PUBLISHED):
        commit = step.execution.commit if step.execution else None
        changed = (git_if_any(Path(), "diff", "--name-only", commit or "HEAD", "--", str(PAPERS)) or "").split("\n")
        new = (git_if_any(Path(), "ls-files", "--others", "--", str(PAPERS)) or "").split("\n")
        if (files := sorted(filter(None, {*changed, *new}))) and (why := _other_figures()):
            message = f"{some(files)} changed since {step.stage} ran: {why}; take it back, or `merganser use` again"
            yield Finding(DifferenceKind.PAPERS, str(PAPERS), message, (step.stage,))


def _other_figures() -> str | None:
    """Return how the report's published figures differ from the papers' files; None if they agree, or without any."""
    params = load_params()
    path = Path(params.published.source) if params.published else None
    try:
        if path and (figures := figures_at(Path(), path)) is not None and figures != read_yaml(path):
            return f"{path}, which the report shows, was written from other figures"
    except InputError as error:
        return str(error)
    return None
