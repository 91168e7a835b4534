"""The hooks by which a project extends the runs of its repository, and how the repository declares them.

A repository declares them in pyproject.toml: `project = "module:object"` under `[tool.dvcfleet]`. Without this table,
hooks are those that an installed package offers by an entry point of the group `dvcfleet.projects`, if the repository's
root has a folder of the entry point's name with a dot before it. Otherwise no hooks are called.
"""

import sys
import tomllib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dvcfleet.dvc_adapter.protocols import Repo, Stage
from dvcfleet.errors import UserError, in_one_line

if TYPE_CHECKING:
    from dvcfleet.dvc_adapter.lockfiles import LockFiles

TABLE = "dvcfleet"
GROUP = "dvcfleet.projects"
_given: dict[Path, "Project"] = {}  # by repositories
_EVERYWHERE = {".dvc", ".dvcfleet", ".git"}  # of no project


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
    def packages(self) -> Collection[str]:
        """Name packages whose modules run warm wherever they are installed, and are imported once for many commands.

        What importing them does must not depend on the command: they read no file but code then, no arguments, and
        the environment except `DVC_STAGE`.
        """
        return ()

    def identity(self, root: Path) -> str:
        """Return what tells the repository at `root` from others that share git's experiments with it; empty: nothing.

        Each line of the ledger and each saved experiment has it.
        """
        return ""

    def before_reading(self) -> None:
        """Write missing files that dvc.yaml reads; called before DVC reads the repository."""

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
        """Check the project's own files before a run; raise UserError, or an error class with `exit_code = 2`."""

    def check_gpus(self, gpus: Mapping[str, int]) -> None:
        """Refuse stages that compute on a GPU and request none; `gpus`: the number that each stage to run requests."""

    def before_planning(self, repo: Repo, say: Callable[[str], None]) -> None:
        """Update files that stages read and no stage writes, such as pointers to a branch of a source."""

    def follow_declared(self, repo: Repo, lock_files: "LockFiles", say: Callable[[str], None]) -> None:
        """Remove undeclared stages from dvc.lock and the workspace; called if no targets are named."""

    def takes_out(self, lock_file: Path) -> bool:
        """Tell whether `follow_declared` removes undeclared stages from a dvc.lock."""
        return False

    def distrusted(self, stages: Sequence[Stage]) -> Mapping[str, str]:
        """Return stages that must run although DVC has their outputs, with the reason; called at each plan."""
        return {}

    def is_download(self, path: Path) -> bool:
        """Tell whether an input of a stage names a download."""
        return False

    def expect(self, needs: Mapping[str, Collection[str]]) -> Expected:
        """Return expectations of stages that never ran; it may ask the servers that downloads are on.

        `needs`: by stage, the stages that it reads from.
        """
        return Expected()

    def predict_outputs(self, stage: str) -> Mapping[str, str] | None:
        """Return all text files that a stage will write, by path, if they are known without running it, else None."""
        return None

    def before_running(self, folder: Path, causes: Mapping[str, Sequence[str]], run: str) -> None:
        """Save files that the run's stages will change to the state folder; `run` is the run's name.

        `causes`: why stages are not up to date, of those that would run even if no other stage did.
        """

    def wanted_first(self, needs: Mapping[str, Collection[str]]) -> Set[str]:
        """Return the stages whose results are wanted first, such as a first table's.

        `needs`: by stage of the plan, the stages that it reads from, in topological order.
        """
        return frozenset()

    def describe(self, run: str) -> Mapping[str, Any]:
        """Return what Prefect's flow run shows among its parameters, as plain data; `run` is the run's name."""
        return {}

    def while_running(self, ended: Set[str], latest: str, say: Callable[[str], None]) -> None:
        """Called each time a stage has succeeded; `ended`: all stages that are up to date by now."""

    def after_running(self, done: Set[str], say: Callable[[str], None]) -> None:
        """Report the result of a successful run; `done`: the stages that it brought up to date."""


def project_of(root: Path) -> Project:
    """Return the project of the repository at `root`; raise UserError if it cannot be loaded.

    `[tool.dvcfleet]` in its pyproject.toml goes before a folder of an installed package's project.
    """
    if _given and (given := _given.get(root.resolve())):
        return given
    path = root / "pyproject.toml"
    if path.is_file():
        stat = path.stat()
        if declared := _declared(path, stat.st_mtime_ns, stat.st_size):
            return declared
    return _offered(root)


@contextmanager
def hooks_given(root: Path, project: Project) -> Iterator[None]:
    """Take a project's hooks for the repository at `root`, whatever the repository declares."""
    place = root.resolve()  # as DVC names it
    _given[place] = project
    try:
        yield
    finally:
        del _given[place]


def _offered(root: Path) -> Project:
    """Return the project of an installed package whose folder is in `root`; if there is none, one without hooks."""
    folders = {path.name for path in root.glob(".*") if path.is_dir()} - _EVERYWHERE
    offered = [each for each in _entry_points(tuple(sys.path)) if f".{each.name}" in folders] if folders else []
    if not offered:
        return Project()
    if len(offered) > 1:
        offers = " and ".join(f".{each.name} ({announced_object(each)})" for each in offered)
        raise UserError(f"{root}: hooks of {offers}: say which by project under [tool.{TABLE}] in pyproject.toml")
    where = f"{root / f'.{offered[0].name}'}: the project {offered[0].name}"
    return _checked(where, announced_object(offered[0]), offered[0].load)


@cache
def _entry_points(path: tuple[str, ...]) -> tuple[EntryPoint, ...]:
    """List the projects that packages installed on this path offer."""
    return tuple(entry_points(group=GROUP))


@cache
def _declared(path: Path, modified: int, size: int) -> Project | None:
    """Return the project that a pyproject.toml declares; None if it has no table for it."""
    text = path.read_bytes().decode(errors="surrogateescape")
    if TABLE not in text:  # nor is it parsed: DVC would not read it either
        return None
    try:
        tools: Any = tomllib.loads(text).get("tool")
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: cannot be read as TOML ({in_one_line(error)}), and it names {TABLE}") from error
    if not isinstance(tools, dict) or TABLE not in tools:
        return None
    table = tools[TABLE]
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
    return _checked(where, declared, lambda: getattr(import_module(module), name))


def _checked(where: str, what: str, load: Callable[[], Any]) -> Project:
    try:
        project = load()
    except (Exception, SystemExit) as error:  # another package's module may raise anything
        raise UserError(f'{where}: "{what}" cannot be loaded ({in_one_line(error)})') from error
    if not isinstance(project, Project):
        raise UserError(f'{where}: "{what}" should be an object of a class that extends dvcfleet.project.Project')
    return project


def announced_object(announced: EntryPoint) -> str:
    """Say which object an entry point names, and of which package."""
    return f"{announced.value}{f' of {announced.dist.name}' if announced.dist else ''}"
