"""Compute the report's tables and page again and compare them with the files. Imports torch."""

import re
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from tempfile import TemporaryDirectory

from dvcfleet.disk import read_json
from dvcfleet.lineage.steps import Finding, Lineage
from merganser.config.loading import load_params
from merganser.report.comparison import Comparison
from merganser.report.formats import PARQUET
from merganser.report.origin import FILE, Origin
from merganser.report.sections import changes, origin
from merganser.tasks import stages
from merganser.tasks.report import PAGE, write_report
from merganser.tasks.stages import REPORT, SCORES, SUMMARY

# Of a report by a version that had all numbers in metrics.json, what has another form now; dvc.lock fixes its bytes.
OTHER_FORM = {PAGE, "confusions.csv", "entries", "plots"}
_CHANGES = re.compile(r'<section id="changes">.*?</section>', re.S)


class ReportKind(StrEnum):
    """Kinds of differences of a report."""

    DIFFERS = "report differs"


def check_report(lineage: Lineage) -> Iterator[Finding]:
    """Find tables, numbers and the page of the report that do not follow from its inputs.

    Runs in a Merganser project's folder whose files are as recorded. Plots are not drawn again. Changes since
    another run are in no input and are not compared. The person, time and machine come from origin.json, which
    dvc.lock fixes.
    """
    for step in lineage.steps.values():
        if any(item.path == str(REPORT) for item in step.outputs):
            is_earlier = all(item.path != str(SCORES) for item in step.outputs)
            for name in _differing(is_earlier):
                message = (
                    f"differs from the report that its inputs give; `merganser run --force {step.stage}` recreates it"
                )
                yield Finding(ReportKind.DIFFERS, str(name), message, (step.stage,))


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
