"""The hooks by which a repository's project extends its lineage."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from dvcfleet.dvc_adapter.protocols import Repo
from dvcfleet.lineage.findings import Finding
from dvcfleet.lineage.steps import FetchedSource, Lineage, Target, TrackingRun
from dvcfleet.project import project_of


class LineageHooks:
    """A project's hooks in lineage: here they do nothing; a project's class overrides some.

    All are called in the repository's root folder, with the repository opened.
    """

    @property
    def elsewhere(self) -> Sequence[str]:
        """Name the variables that make stages write to services outside the repository; a rerun unsets them."""
        return ()

    def find(self, repo: Repo, text: str) -> Target | None:
        """Resolve a name that only the project knows; raise UserError if it nearly matches one."""
        return None

    def names(self) -> Iterable[str]:
        """List the names that `find` knows, for suggestions."""
        return ()

    def about(self, path: str, md5: str | None) -> str | None:
        """Say in a few words what a stage's input or output of these bytes is; None for most."""
        return None

    def origin(self, path: Path) -> FetchedSource | None:
        """Return the source from which an output folder was fetched, if it records one."""
        return None

    def tracking_run(self, path: Path) -> TrackingRun | None:
        """Return the experiment tracker's run that an output file refers to."""
        return None

    def written_by_stages(self) -> Iterable[Path]:
        """List the files, from the repository's root, of which each should be a stage's output."""
        return ()

    def audit(self, lineage: Lineage, found: Sequence[Finding]) -> list[Finding]:
        """Compare the project's external records with the lineage; `found` lists the differences found so far."""
        return []

    def audited(self, lineage: Lineage) -> list[str]:
        """Say in words what `audit` compares."""
        return []

    def tolerance(self, path: str, content: Any, place: tuple[str, ...]) -> float | None:
        """Return how far a number of a metric file may move when stages run again with other parameters.

        `content`: what was recorded; `place`: the keys that lead to the number. None: it is not compared.
        """
        return 0.0


def hooks_of(root: Path) -> LineageHooks:
    """Return the lineage hooks of the project that the repository at `root` declares; empty ones if it has none."""
    project = project_of(root)
    return project if isinstance(project, LineageHooks) else LineageHooks()
