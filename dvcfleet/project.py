"""What a project adds to the runs of its own repository, and how its repository declares it.

A repository says in its pyproject.toml, under `[tool.dvcfleet]`, `project = "module:object"`; without that it is run as
it is.
"""

import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from dvcfleet.errors import UserError

if TYPE_CHECKING:
    from dvc.repo import Repo

    from dvcfleet.planning.plan import Plan
    from dvcfleet.provenance.findings import Finding
    from dvcfleet.provenance.targets import Target
    from dvcfleet.provenance.tree import Lineage, Origin

TABLE = "dvcfleet"


class Project(Protocol):
    """What a project adds. All calls come in its repository's root folder, with the repository opened.

    `preload` names third-party modules that warm processes import once, before they are given stages.
    """

    preload: Sequence[str]

    def variables(self) -> Mapping[str, str]:
        """Return environment variables for all stages; called where a stage is started, maybe elsewhere."""

    def digest(self) -> str:
        """Identify what `validate` checks, cheaply: what was valid once is not checked again."""

    def validate(self, repo: "Repo") -> None:
        """Check the project's own files before any work; raise UserError."""

    def before_planning(self, say: Callable[[str], None]) -> None:
        """Bring up to date what stages depend on and no stage makes, such as sources that move."""

    def foresee(self, stage: str) -> Mapping[str, str] | None:
        """Return all the text files that a stage will write, by path, if that is known without running it."""

    def before_running(self, folder: Path, plan: "Plan", run: str) -> None:
        """Keep in the run's own folder what its stages are about to change; `run` is the name of the run."""

    def find(self, repo: "Repo", text: str) -> "Target | None":
        """Find what a name of the project's own stands for; raise UserError where it nearly fits."""

    def names(self) -> Iterable[str]:
        """List the names that `find` knows, to offer the nearest of them."""

    def origin(self, path: Path) -> "Origin | None":
        """Return where an output folder was brought from, if it says so."""

    def tracking_run(self, path: Path) -> str | None:
        """Return the id of the run in an experiment tracker that an output file is the receipt of."""

    def audit(self, lineage: "Lineage", found: Sequence["Finding"]) -> "list[Finding]":
        """Compare what the project keeps elsewhere with what is recorded; `found` is what differs here already."""


class AnyRepository:
    """A repository that declares no project."""

    preload: Sequence[str] = ()

    def variables(self) -> Mapping[str, str]:
        """Add nothing."""
        return {}

    def digest(self) -> str:
        """Return nothing: there is nothing to check."""
        return ""

    def validate(self, repo: "Repo") -> None:
        """Take it as it is."""

    def before_planning(self, say: Callable[[str], None]) -> None:
        """Do nothing."""

    def foresee(self, stage: str) -> Mapping[str, str] | None:
        """Know nothing."""
        return None

    def before_running(self, folder: Path, plan: "Plan", run: str) -> None:
        """Keep nothing."""

    def find(self, repo: "Repo", text: str) -> "Target | None":
        """Know no names."""
        return None

    def names(self) -> Iterable[str]:
        """Know no names."""
        return ()

    def origin(self, path: Path) -> "Origin | None":
        """Know no origins."""
        return None

    def tracking_run(self, path: Path) -> str | None:
        """Know no runs."""
        return None

    def audit(self, lineage: "Lineage", found: Sequence["Finding"]) -> "list[Finding]":
        """Find nothing."""
        return []


def project_of(root: Path) -> Project:
    """Return the project that the repository at `root` declares; raise UserError where it cannot be loaded."""
    path = root / "pyproject.toml"
    if not path.is_file():
        return AnyRepository()
    stat = path.stat()
    return _declared(path, stat.st_mtime_ns, stat.st_size)


@cache
def _declared(path: Path, modified: int, size: int) -> Project:
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: cannot be read as TOML ({error})") from error
    table: Any = content.get("tool", {}).get(TABLE, {})
    declared = table.get("project") if isinstance(table, dict) else None
    if declared is None:
        return AnyRepository()
    module, _, name = str(declared).partition(":")
    try:
        project: Project = getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise UserError(f'{path}: tool.{TABLE}.project: "{declared}" cannot be loaded ({error})') from error
    return project
