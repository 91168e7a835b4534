"""Compare the report's published figures with the papers' files that they come from."""

from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path

from dvcfleet.errors import some
from dvcfleet.git import git_if_any
from dvcfleet.lineage.steps import Finding, Lineage
from merganser.config.loading import load_params
from merganser.errors import InputError
from merganser.flows.suites.published import PAPERS
from merganser.flows.suites.ready import figures_at
from merganser.limits import read_yaml
from merganser.tasks.stages import PUBLISHED


class PaperKind(StrEnum):
    """The kind of difference from the papers' figures."""

    PAPERS = "published figures changed"


def check_papers(lineage: Lineage) -> Iterator[Finding]:
    """Find papers' files that changed since the stage `publish` ran, and now give other figures.

    Runs in a Merganser project's folder. The stage reads the file that `use` wrote, which a user may edit; no stage
    reads the papers' files.
    """
    for step in lineage.steps.values():
        if any(item.path == str(PUBLISHED) for item in step.outputs):
            commit = step.execution.commit if step.execution else None
            changed = (git_if_any(Path(), "diff", "--name-only", commit or "HEAD", "--", str(PAPERS)) or "").split("\n")
            new = (git_if_any(Path(), "ls-files", "--others", "--", str(PAPERS)) or "").split("\n")
            if (files := sorted(filter(None, {*changed, *new}))) and (why := _other_figures()):
                message = f"{some(files)} changed since {step.stage} ran: {why}; take it back, or `merganser use` again"
                yield Finding(PaperKind.PAPERS, str(PAPERS), message, (step.stage,))


def _other_figures() -> str | None:
    """Return why papers' files do not give the figures here; None if they do, or if there are none."""
    params = load_params()
    path = Path(params.published.source) if params.published else None
    try:
        if path and (figures := figures_at(Path(), path)) is not None and figures != read_yaml(path):
            return f"{path}, which the report shows, was written from other figures"
    except InputError as error:
        return str(error)
    return None
