"""Move a comparison out of a clone of Merganser's repository, into a repository without Merganser's code.

Its choices, inputs, cache, MLflow store, ledger, git history and saved runs come along. Results whose code writes the
same bytes as the installed code stay up to date: dvc.lock gets the installed package's commands and classes of code,
and the ledger says which code ran.
"""

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from dvcfleet.git import git, own_environment
from dvcfleet.project import Project, hooks_given
from dvcfleet.record.ledger import executions
from dvcfleet.repository import STATE_FOLDER, opened, state_folder, write_lock
from merganser.config.loading import load_params
from merganser.config.points import write_points
from merganser.errors import InputError, some
from merganser.flows.evidence.kept_runs import experiments
from merganser.flows.evidence.signing import RECORDED, SIGNATURES
from merganser.flows.repositories.identity import cache_folder, note_sharers
from merganser.flows.steps.answer import link_or_copy
from merganser.flows.steps.updating import LOCK, carry_over
from merganser.flows.suites.ready import IGNORED, PARAMS, examples_of, sources_of
from merganser.tasks.code_record import RECORD
from merganser.tasks.stages import CODE
from merganser.tasks.tracking import ARTIFACTS, STORE

# What comes along as it is; in the state folder, what says what ran.
KEPT = (*(path for path in RECORDED if path.parts[0] == STATE_FOLDER), SIGNATURES, STORE, ARTIFACTS, CODE)
SETTINGS = (LOCK, PARAMS, *map(Path, (".dvc/cache/runs", ".dvc/config.local", "prefect.yaml", "profiles.yaml")))
OBJECTS = Path(".dvc/cache/files")


@dataclass(frozen=True)
class Clone:
    """The choices of a new comparison: those of one in a clone of Merganser's repository."""

    path: Path

    def write(self, root: Path, folder: Path) -> list[str]:
        """Bring the comparison; return what to tell the user. Raises InputError if the clone has none."""
        refuse_other_folders(self.path)
        if not (root / ".git").exists():
            raise InputError(f"{folder}: lies in a git repository, and a clone's comparison brings its own history")
        clone = self.path.absolute()
        import_clone(clone, root)
        with opened(root) as repo, write_lock(repo):
            said = carry_over(repo)
            cache = cache_folder(repo)
        if not cache.is_relative_to(root):  # a cache that the clone shares with others too
            note_sharers(cache, clone, folder)
        left = f"other files, such as your own code, stay in {self.path}; committed ones are in git's history here"
        return [f"{folder}: the comparison of {self.path}", *said, left]


def refuse_other_folders(clone: Path) -> None:
    """Raise InputError unless a folder is a clone with a comparison that ran."""
    if (clone / RECORD).exists() or not (clone / "dvc.yaml").is_file():
        raise InputError(f"{clone}: no clone of Merganser with a comparison to take out")
    for path in (PARAMS, LOCK):
        if not (clone / path).is_file():
            raise InputError(
                f"{clone}: has no {path}: nothing ran there; `merganser init DIR --suite NAME` starts from scratch"
            )


def import_clone(clone: Path, draft: Path) -> None:
    """Bring a clone's history, choices, sources, cache and records into a new git repository.

    The cache's objects, which nothing overwrites, become hard links if the disk allows it. Only saved runs that the
    clone's own ledger knows come along, since several comparisons may have runs in one git repository.
    """
    with hooks_given(clone, Project()), opened(clone) as repo, write_lock(repo):  # its own are of its code
        names = {one.run for one in executions(state_folder(repo)) if one.ledger is None}
        runs = [f"+{run.ref}:{run.ref}" for run in experiments(clone) if run.name in names]
        wanted = "\n".join(["HEAD", *runs])
        git(draft, "fetch", "-q", "--stdin", str(clone), given=wanted, environment=own_environment())
        git(draft, "update-ref", "HEAD", "FETCH_HEAD", environment=own_environment())
        tracked = set(git(clone, "ls-files", "-z", environment=own_environment()).split("\0"))
        for path in (*KEPT, *SETTINGS):
            _bring(clone / path, draft / path)
        _bring(clone / OBJECTS, draft / OBJECTS, link_or_copy)
        params = load_params(draft / PARAMS)
        write_points(params, draft)
        examples = examples_of(params, clone)
        made_by = [name for each in examples for name in tracked if Path(name).is_relative_to(each)]
        for path in (IGNORED, *map(Path, made_by), *(each / LOCK for each in examples)):
            _bring(clone / path, draft / path)
        outs = {Path(out.fs_path) for out in repo.index.outs}
        for path in (each for each in sources_of(params) if not each.is_absolute()):
            if not {clone / path, *(clone / path).parents} & outs:
                _bring(clone / path, draft / path)
                if not any(name == str(path) or name.startswith(f"{path}/") for name in tracked):
                    with (draft / ".gitignore").open("a") as ignored:  # as git had it: not at all
                        ignored.write(f"/{path}\n")


def _bring(source: Path, target: Path, copy: Callable[[str, str], object] = shutil.copy2) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.copytree(source, target, symlinks=True, copy_function=copy, dirs_exist_ok=True)
    elif source.is_file():
        copy(str(source), str(target))


def check_out_workspace(root: Path) -> list[str]:
    """Restore the outputs in dvc.lock in a comparison's final place; return a line for those that the cache lacks."""
    from dvc.exceptions import DvcException

    lacking = []
    with opened(root) as repo, write_lock(repo):
        for out in (each for stage in repo.index.stages for each in stage.outs if each.hash_info and each.use_cache):
            try:
                out.checkout(force=True)
            except DvcException:
                lacking.append(str(out))
    return [f"DVC's cache does not have {some(lacking)}: the next run makes it again"] * bool(lacking)
