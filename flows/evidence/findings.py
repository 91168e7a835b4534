"""Findings of an audit besides the engine's: their kinds, and checks whose inputs a stranger may have written."""

from collections.abc import Callable, Iterable, Iterator
from enum import StrEnum
from pathlib import Path

from dvcfleet.errors import FailedError, UserError, in_one_line
from dvcfleet.lineage.steps import Finding, FindingKind, Lineage, LineageStep
from merganser.errors import InputError


class DifferenceKind(StrEnum):
    """Kinds of differences from a comparison's report, papers, MLflow runs, signatures and archive."""

    ARCHIVE_DAMAGED = "archive damaged"
    ARCHIVE_REFUSED = "archive refused"
    MLFLOW = "MLflow differs"
    NO_MLFLOW_RUN = "no MLflow run"
    NOT_COMPARED = "not compared"
    PAPERS = "published figures changed"
    REPORT = "report differs"
    SIGNATURE = "signature"
    SIGNED = "changed since it was signed"


def steps_writing(lineage: Lineage, path: Path) -> Iterator[LineageStep]:
    """Yield the stages with an output at a path."""
    return (step for step in lineage.steps.values() if any(item.path == str(path) for item in step.outputs))


def compare_untrusted(name: Path, check: Callable[[], Iterable[Finding]]) -> list[Finding]:
    """Return the findings of a check of the folder `name`; if its inputs make the check fail, that is a finding."""
    findings: list[Finding] = []
    try:
        findings.extend(check())
    except (InputError, UserError, FailedError, OSError, MemoryError):
        raise
    except Exception as error:  # files of any form, of which code that computes from them may say anything
        message = f"cannot be compared: its inputs are not as stages write them ({in_one_line(error)})"
        findings.append(Finding(FindingKind.CHANGED, str(name), message))
    return findings
