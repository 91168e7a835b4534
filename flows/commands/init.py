"""Repositories of comparisons: created by the installed package, and updated to another version of it.

Such a repository has choices and results, and none of the package's code. `.merganser/code.json` records the code that
makes the results, and the stage `code` depends on it.
"""

import logging
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from dvcfleet.disk import sync_file_systems
from dvcfleet.git import GitError, git, git_if_any, own_environment
from dvcfleet.repository import opened
from merganser.config import PARAMS, POINTS_FILE
from merganser.config.loading import load_params
from merganser.config.points import NONE
from merganser.errors import InputError
from merganser.flows.commands.from_clone import Clone, check_out_workspace
from merganser.flows.comparison import MERGANSER
from merganser.flows.repositories.comparisons import copy_choices, copy_ledger, link_sources, share_cache
from merganser.flows.repositories.identity import note_sharers
from merganser.flows.steps.updating import DVC_YAML, dvc_yaml, new_record
from merganser.flows.suites.files import SUITES
from merganser.flows.suites.ready import bring_examples, check_name, use
from merganser.flows.suites.shipped import shipped
from merganser.limits import read_yaml
from merganser.outputs import new_folder, refuse_existing
from merganser.tasks.code_record import RECORD, record_text
from merganser.tasks.identity import write_id

UNFINISHED = "to be filled in or mended before it runs:"  # and a line each
DRAFT = "begun"  # in an empty folder, until the comparison there is whole
FILES = (Path(".dvcignore"), Path(".gitignore"), Path("prefect.yaml"), Path("profiles.yaml"))
_NOBODY = ("-c", "user.name=merganser", "-c", "user.email=merganser@localhost")
_README = """# {name}

A comparison of merged models by Merganser {version}; `params.yaml` says what is compared.

    pip install 'merganser[pipeline,{extra}]=={version}'
    merganser run              # brings everything up to date; the same command goes on after a failure
    merganser status           # what is up to date, and why the rest is not
    merganser lineage verify   # compares every result with its record
    merganser update           # after another version of Merganser was installed

The report is `report/index.html`. `git clone` and `dvc pull` bring the comparison to another machine.
"""


@dataclass(frozen=True)
class Suite:
    """The choices of a new comparison: a suite."""

    name: str

    def write(self, root: Path, folder: Path) -> list[str]:
        """Write params.yaml and the package's files that it reads; return what to tell the user."""
        check_name(root, self.name)
        with opened(root):
            use(root, self.name, force=True)
        return [f"{folder}: the comparison {self.name}"]


@dataclass(frozen=True)
class Models:
    """The choices of a new comparison: models and data by task, the base as `base`; paths or names on a hub."""

    models: Mapping[str, str]
    data: Mapping[str, str]

    def write(self, root: Path, folder: Path) -> list[str]:
        """Write params.yaml, complete as far as the models and data allow; return what to tell the user."""
        from merganser.config.describing import SCHEMA_FILE, schema_text
        from merganser.config.drafting import draft  # imports torch

        drafted = draft(self.models, self.data, root)
        (root / PARAMS).write_text(drafted.text, encoding="utf-8")
        (root / SCHEMA_FILE).write_text(schema_text(), encoding="utf-8")
        lines = [f"{folder}: a comparison of {', '.join(name for name in self.models if name != 'base')}"]
        lines += ["base: the mean of the tasks' models; to name another: --models base=SOURCE"] * (
            "base" not in self.models
        )
        lines += [f"read of the models and data: {', '.join(drafted.read)}"] if drafted.read else []
        with opened(root) as repo:
            try:
                MERGANSER.validate(repo)
            except InputError as error:
                lines += [
                    UNFINISHED,
                    *(f"  {line}" for line in str(error).splitlines()),
                ]
        return lines


@dataclass(frozen=True)
class Same:
    """The choices of a new comparison: a copy of another one's."""

    other: Path

    def write(self, root: Path, folder: Path) -> list[str]:
        """Copy the choices, and the code that makes an embedded suite's models; return what to tell the user."""
        with opened(root):  # where its own methods are found
            bring_examples(root, load_params(root / PARAMS))
        return [f"{folder}: a comparison like {self.other}"]


Choices = Suite | Models | Clone | Same


def init(folder: Path, choices: Choices, cache_of: Path | None = None) -> list[str]:
    """Create a comparison in a new or empty folder; return what to tell the user.

    The folder gets its name once it is whole. Inside a git repository it becomes a part of that; otherwise it gets
    its own repository with a first commit. `cache_of`: another comparison, to use its DVC cache and results. Raises
    InputError for choices that do not fit together, a folder that is not empty, or a git error.
    """
    folder = folder.resolve() if ".." in folder.parts else folder.absolute()
    refuse_existing(folder)
    present = next(each for each in (folder, *folder.parents) if each.is_dir())
    around = git_if_any(present, "rev-parse", "--show-toplevel", environment=own_environment())
    with _place(folder) as draft:
        lines = _fill(draft, folder, choices, cache_of, own_git=around is None)
    if isinstance(choices, Clone):
        lines += check_out_workspace(folder)
    lines += ["see params.yaml for what it compares, README.md for the next steps"]
    return [*lines, *([f"it is in the git repository {around.strip()}, uncommitted"] if around else [])]


@contextmanager
def _place(folder: Path) -> Iterator[Path]:
    """Yield a draft folder: next to a new folder, or inside an existing one, which may be a shell's current folder."""
    if not folder.is_dir():
        with new_folder(folder) as draft:
            yield draft
        return
    with new_folder(folder / DRAFT) as draft:
        yield draft
    for path in (folder / DRAFT).iterdir():
        path.rename(folder / path.name)
    (folder / DRAFT).rmdir()


def _fill(root: Path, folder: Path, choices: Choices, cache_of: Path | None, *, own_git: bool) -> list[str]:
    """Write all files of a new comparison; `folder`: its final place. Return what to tell the user."""
    from dvc.repo import Repo

    if own_git:
        _git(folder, root, "init", "-q")
    logging.getLogger("dvc").setLevel(logging.ERROR)  # it would speak of a folder that nobody knows
    Repo.init(str(root), subdir=not own_git).close()
    if not own_git:  # the index is the user's, and DVC put into it what it wrote, by the draft's name
        _git(folder, root, "rm", "-r", "-q", "--cached", "--ignore-unmatch", ".")
    for path in (*FILES, Path(".dvc/config")):
        shutil.copyfile(shipped() / path, root / path)
    (root / DVC_YAML).write_text(dvc_yaml(), encoding="utf-8")
    (root / POINTS_FILE).write_text(NONE, encoding="utf-8")
    code = new_record()
    (root / RECORD).parent.mkdir()
    (root / RECORD).write_text(record_text(code), encoding="utf-8")
    write_id(root)
    lines = choices.write(root, folder) if cache_of is None else _sharing(root, folder, choices, cache_of)
    readme = _README.format(name=folder.name, version=code.version, extra=_extra(root))
    (root / "README.md").write_text(readme, encoding="utf-8")
    if own_git:
        _git(folder, root, "add", "--all")
        known = git_if_any(root, "var", "GIT_COMMITTER_IDENT", environment=own_environment()) is not None
        _git(folder, root, *(() if known else _NOBODY), "commit", "-q", "-m", f"Begin the comparison {folder.name}")
    sync_file_systems([root])
    return lines


def _sharing(root: Path, folder: Path, choices: Choices, other: Path) -> list[str]:
    """Write the choices of a comparison that shares another one's cache, and the records to restore its results."""
    cache = share_cache(other, root)
    copy_ledger(other, root)
    if not isinstance(choices, Models):
        copy_choices(other, root)
    if isinstance(choices, Suite) and (other / SUITES).is_dir() and not other.samefile(shipped()):
        shutil.copytree(other / SUITES, root / SUITES)
    lines = choices.write(root, folder)
    if not isinstance(choices, Models):
        lines += [f"{link} links to that of {other}; git does not track it" for link in link_sources(other, root)]
    note_sharers(cache, other, folder)
    return [*lines, f"it has the DVC cache of {other}"]


def _extra(root: Path) -> str:
    """Return the package's extras that the family of models needs."""
    from merganser.models import TakesImages, TakesSounds, has_ability  # imports torch

    family = read_yaml(root / PARAMS)["base"].get("family")
    if family is None:
        return "vision,text"
    extras = {"vision": TakesImages, "audio": TakesSounds}
    return next((extra for extra, ability in extras.items() if has_ability(family, ability)), "text")


def _git(folder: Path, root: Path, *args: str) -> None:
    try:
        git(root, *args, environment=own_environment())
    except GitError as error:
        raise InputError(f"{folder}: git refuses: {error}") from error
