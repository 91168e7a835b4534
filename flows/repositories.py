"""Comparisons in repositories of their own: begun by the installed package, and brought to another version of it.

Such a repository has choices and results, and none of the package's code: `.merganser/code.json` says by which code the
results are made, and the stage `code` depends on it.
"""

import logging
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from dvcfleet.crash_recovery import sync
from dvcfleet.disk import sync_file_systems
from dvcfleet.git import GitError, git, git_if_any, own_environment
from dvcfleet.repository import opened, state_folder, write_lock
from merganser.config.params import Params
from merganser.errors import InputError, some
from merganser.flows.suite_files import shipped
from merganser.flows.suites import EXAMPLES, check_name, sources_of, use
from merganser.outputs import new_folder, replacing
from merganser.tasks.code import digests
from merganser.tasks.code_record import RECORD, installed_code, other_code, read_record, record_text
from merganser.tasks.stage import code_tree

DVC_YAML = Path("dvc.yaml")
FILES = (Path(".dvcignore"), Path(".gitignore"), Path("prefect.yaml"), Path("profiles.yaml"))
_OF_CLONE = re.compile(r"deps: \[.*merganser, tasks\]")  # of the stage `code`
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


def init(folder: Path, suite: str) -> list[str]:
    """Begin a suite's comparison in a folder that is new or empty; return what there is to say.

    It has its name once it is whole. In a git repository it becomes a part of that, else it has its own, with a first
    commit. Raises InputError for an unknown suite, a folder with something in it, and where git refuses.
    """
    folder = folder.absolute()
    if folder.is_dir() and not any(folder.iterdir()) and folder != Path.cwd():
        folder.rmdir()
    check_name(shipped(), suite)
    around = git_if_any(_present(folder.parent), "rev-parse", "--show-toplevel", environment=own_environment())
    with new_folder(folder) as draft:
        _fill(draft, folder, suite, own_git=around is None)
    lines = [f"{folder}: the comparison {suite}; params.yaml says what it compares, README.md how to go on"]
    return [*lines, *([f"it is in the git repository {around.strip()}, uncommitted"] if around else [])]


def update(root: Path) -> list[str]:
    """Bring a comparison to the installed code: its dvc.yaml, and the record of code; return what there is to say.

    Nothing runs: the next run brings the results up to date. Raises InputError in a clone, which has its own code.
    """
    if not (root / RECORD).is_file():
        raise InputError(f"{root}: has no {RECORD} to update; a clone of Merganser's runs its own code")
    with opened(root) as repo, write_lock(repo):
        before, now = read_record(root), installed_code(digests(code_tree()))
        differing = other_code(before, now)
        text = dvc_yaml()
        here = (root / DVC_YAML).read_text(encoding="utf-8")
        changes = [str(DVC_YAML)] if here != text else []
        if changes and git_if_any(root, "show", f"HEAD:./{DVC_YAML}") != here:
            raise InputError(
                f"{DVC_YAML}: has changes that are in no commit, and update would overwrite them; commit it"
            )
        for path, content in ((DVC_YAML, text), (RECORD, record_text(now))):
            with replacing(root / path) as out:
                out.write(content.encode())
        sync(repo, state_folder(repo))
    version = f"from Merganser {before.version} to {now.version}" if before.version != now.version else now.version
    if not differing and not changes:
        return [f"{version}: nothing changes"]
    said = [f"changed: the code of {some(differing)}"] if differing else []
    said += [f"written anew: {', '.join(changes)}"] if changes else []
    return [version, *said, "`merganser run --dry-run` says what will run again"]


def dvc_yaml() -> str:
    """Return the dvc.yaml of a comparison."""
    text = (shipped() / DVC_YAML).read_text(encoding="utf-8")
    return _OF_CLONE.sub(f"deps: [{RECORD}]", text)


def _fill(root: Path, folder: Path, suite: str, *, own_git: bool) -> None:
    """Write all of a new comparison; `folder`: where it will be."""
    from dvc.repo import Repo

    if own_git:
        _git(folder, root, "init", "-q")
    logging.getLogger("dvc").setLevel(logging.ERROR)  # it would speak of a folder that nobody knows
    Repo.init(str(root), subdir=not own_git).close()
    for path in (*FILES, Path(".dvc/config")):
        shutil.copyfile(shipped() / path, root / path)
    (root / DVC_YAML).write_text(dvc_yaml(), encoding="utf-8")
    code = installed_code(digests(code_tree()))
    (root / RECORD).parent.mkdir()
    (root / RECORD).write_text(record_text(code), encoding="utf-8")
    with opened(root):
        params = use(root, suite, force=True)
    for example in _examples(params):
        shutil.copytree(shipped() / example, root / example, ignore=_made_by_runs)
    extra = "text" if params.base.family != "open_clip" else "vision"
    (root / "README.md").write_text(
        _README.format(name=folder.name, version=code.version, extra=extra), encoding="utf-8"
    )
    if own_git:
        _git(folder, root, "add", "--all")
        known = git_if_any(root, "var", "GIT_COMMITTER_IDENT", environment=own_environment()) is not None
        _git(folder, root, *(() if known else _NOBODY), "commit", "-q", "-m", f"Begin the comparison {suite}")
    sync_file_systems([root])


def _examples(params: Params) -> Iterator[Path]:
    """Give the folders of examples that make what a params.yaml reads, and what they share."""
    read = {EXAMPLES / source.parts[1] for source in sources_of(params) if source.parts[:1] == EXAMPLES.parts}
    yield from sorted({EXAMPLES / "common", *read} if read else read)


def _made_by_runs(folder: str, names: list[str]) -> set[str]:
    """Leave out what git ignores in a clone: what the examples' stages made there."""
    made = {"__pycache__", "datasets", "hub", "ratings", "dvc.lock"} & set(names)
    return made


def _present(folder: Path) -> Path:
    return next(each for each in (folder, *folder.parents) if each.is_dir())


def _git(folder: Path, root: Path, *args: str) -> None:
    try:
        git(root, *args, environment=own_environment())
    except GitError as error:
        raise InputError(f"{folder}: git refuses: {error}") from error
