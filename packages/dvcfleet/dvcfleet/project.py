"""The hooks by which a project extends the runs of its repository, and how the repository declares them.

A repository declares them in pyproject.toml: `project = "module:object"` under `[tool.dvcfleet]`. Without this entry no
hooks are called.
"""

import tomllib
from collections.abc import Callable, Collection, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from dvcfleet.dvc_adapter.protocols import Repo, Stage
from dvcfleet.errors import UserError, in_one_line

TABLE = "dvcfleet"


@dataclass(frozen=True)
class Expected:
    """What is known of stages that never ran: bytes to download, by the file that names what; by the stages' names
    bytes to write, and seconds.
    """

    downloads: Mapping[Path, int] = field(default_factory=dict)
    written: Mapping[str, float] = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict)


class Project:
    """A project's hooks in the runs of its repository: here they do nothing; a project's class overrides some.

    All are called in the repository's root folder, with the repository opened. Those in lineage are
    `dvcfleet.lineage.hooks.LineageHooks`, for a class that extends both.
    """

    @property
    def preload(self) -> Sequence[str]:
        """Name third-party modules that a warm process imports before it runs stages; without any there is none."""
        return ()

    @property
    def saves_experiments(self) -> bool:
        """Tell whether each run that succeeds is saved as a DVC experiment, not only with `--save-experiment`."""
        return False

    def variables(self, run: str) -> Mapping[str, str]:
        """Return environment variables for all stages; called on the machine that starts a stage.

        `run` is the run's name; empty where a cluster's worker starts a warm process, which serves many runs.
        """
        return {}

    def digest(self) -> str:
        """Return a cheap digest of what `validate` checks; while it does not change, `validate` is not called again."""
        return ""

    def validate(self, repo: Repo) -> None:
        """Check the project's own files before any work; raise UserError, or an error of the project's own whose class
        has `exit_code = 2`.
        """

    def check_gpus(self, gpus: Mapping[str, int]) -> None:
        """Refuse stages that compute on a GPU and ask for none; `gpus`: how many each stage that will run asks for."""

    def before_planning(self, say: Callable[[str], None]) -> None:
        """Update files that stages read and no stage writes, such as pointers to a branch of a source."""

    def distrusted(self, stages: Sequence[Stage]) -> Mapping[str, str]:
        """Return why stages whose outputs DVC has must run all the same, by their names; called at each plan."""
        return {}

    def is_download(self, path: Path) -> bool:
        """Tell whether a file that a stage reads names what the stage downloads."""
        return False

    def expect(self, needs: Mapping[str, Collection[str]]) -> Expected:
        """Return what is expected of stages that never ran; it may ask where files that name downloads lead.

        `needs`: by the name of each stage that will run, the stages that it reads from.
        """
        return Expected()

    def predict_outputs(self, stage: str) -> Mapping[str, str] | None:
        """Return all text files that a stage will write, by path, if they are known without running it, else None."""
        return None

    def before_running(self, folder: Path, causes: Mapping[str, Sequence[str]], run: str) -> None:
        """Save to the state folder what the run's stages are about to change; `run` is the run's name.

        `causes`: why stages are not up to date, of those that would run even if no other stage did.
        """

    def wanted_first(self, needs: Mapping[str, Collection[str]]) -> Set[str]:
        """Return the stages of a run whose results are wanted before others', such as a first table's.

        `needs`: by the name of each stage of the plan, the stages that it reads from, in topological order.
        """
        return frozenset()

    def describe(self, run: str) -> Mapping[str, Any]:
        """Return what Prefect's flow run shows among its parameters, as plain data; `run` is the run's name."""
        return {}

    def while_running(self, ended: Set[str], latest: str, say: Callable[[str], None]) -> None:
        """Look at what is there each time a stage has ended well; `ended`: all that are up to date by now."""

    def after_running(self, done: Set[str], say: Callable[[str], None]) -> None:
        """Say what a run came to that ended well; `done`: the stages that it was to bring up to date."""


def project_of(root: Path) -> Project:
    """Return the project that the repository at `root` declares; raise UserError if it cannot be loaded."""
    path = root / "pyproject.toml"
    if not path.is_file():
        return Project()
    stat = path.stat()
    return _declared(path, stat.st_mtime_ns, stat.st_size)


@cache
def _declared(path: Path, modified: int, size: int) -> Project:
    text = path.read_bytes().decode(errors="surrogateescape")
    if TABLE not in text:  # nor is it parsed: DVC would not read it either
        return Project()
    try:
        tools: Any = tomllib.loads(text).get("tool")
    except ValueError as error:
        raise UserError(f"{path}: cannot be read as TOML ({in_one_line(error)}), and it names {TABLE}") from error
    table = tools.get(TABLE, {}) if isinstance(tools, dict) else {}
    if not isinstance(table, dict):
        raise UserError(f'{path}: tool.{TABLE} should be a table with project = "module:object", got {table!r}')
    for key in table:
        if key != "project":
            raise UserError(f"{path}: tool.{TABLE}.{key}: unknown; there is project")
    return _loaded(path, table["project"]) if table else Project()


def _loaded(path: Path, declared: Any) -> Project:
    where = f"{path}: tool.{TABLE}.project"
    module, _, name = declared.partition(":") if isinstance(declared, str) else ("", "", "")
    if not (module and name):
        raise UserError(f'{where} should be "module:object", got {declared!r}')
    try:
        project = getattr(import_module(module), name)
    except Exception as error:  # the module is the repository's own, and may raise anything
        raise UserError(f'{where}: "{declared}" cannot be loaded ({in_one_line(error)})') from error
    if not isinstance(project, Project):
        raise UserError(f'{where}: "{declared}" should be an object of a class that extends dvcfleet.project.Project')
    return project
