"""Take a comparison out of a clone of Merganser's repository, into a repository that has no code of Merganser's.

Its choices, what it reads, its cache, MLflow's store, ledger, and git's history with the saved runs come along. What
ran by code that writes the same bytes as the installed one's is up to date there: dvc.lock names the installed
package's commands and classes of code, and the ledger says that names alone changed.
"""

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from dvcfleet.git import git, own_environment
from dvcfleet.repository import STATE_FOLDER, opened, write_lock
from merganser.config.loading import load_params
from merganser.errors import InputError
from merganser.flows.older_lock import LOCK, carry_over
from merganser.flows.signing import RECORDED, SIGNATURES
from merganser.flows.suites import PARAMS, sources_of
from merganser.tasks.code_record import RECORD
from merganser.tasks.stages import CODE
from merganser.tasks.tracking import ARTIFACTS, STORE

# What comes along as it is; in the state folder, what says what ran.
KEPT = (*(path for path in RECORDED if path.parts[0] == STATE_FOLDER), SIGNATURES, STORE, ARTIFACTS, CODE)
SETTINGS = (LOCK, PARAMS, Path(".dvc/cache"), Path(".dvc/config.local"), Path("prefect.yaml"), Path("profiles.yaml"))
WRITTEN_IN_PLACE = (".db", ".json", ".jsonl", ".lock", ".local", ".yaml")


@dataclass(frozen=True)
class Clone:
    """What a comparison begins with: the one in a clone of Merganser's repository."""

    path: Path

    def write(self, root: Path, folder: Path) -> list[str]:
        """Bring the comparison; return what there is to say. Raises InputError where there is none."""
        refuse_other_folders(self.path)
        if not (root / ".git").exists():
            raise InputError(f"{folder}: lies in a git repository, and a clone's comparison has a history of its own")
        bring(self.path.absolute(), root)
        with opened(root) as repo, write_lock(repo):
            said = carry_over(repo)
        return [f"{folder}: the comparison of {self.path}", *said]


def refuse_other_folders(clone: Path) -> None:
    """Raise InputError for a folder that is no clone with a comparison that ran."""
    if (clone / RECORD).exists() or not (clone / "dvc.yaml").is_file():
        raise InputError(f"{clone}: no clone of Merganser with a comparison to take out")
    for path in (PARAMS, LOCK):
        if not (clone / path).is_file():
            raise InputError(
                f"{clone}: has no {path}: nothing ran there; `merganser init DIR --suite NAME` begins anew"
            )


def bring(clone: Path, draft: Path) -> None:
    """Bring a clone's history, choices, sources, cache and records into a new git repository.

    Files that nothing writes into are hard links where the disk allows.
    """
    with opened(clone) as repo, write_lock(repo):
        git(draft, "fetch", "-q", str(clone), "HEAD", "+refs/exps/*:refs/exps/*", environment=own_environment())
        git(draft, "update-ref", "HEAD", "FETCH_HEAD", environment=own_environment())
        tracked = set(git(clone, "ls-files", "-z", environment=own_environment()).split("\0"))
        for path in (*KEPT, *SETTINGS):
            _bring(clone / path, draft / path)
        params = load_params(draft / PARAMS)
        outs = {Path(out.fs_path) for out in repo.index.outs}
        for path in (each for each in sources_of(params) if not each.is_absolute()):
            if not {clone / path, *(clone / path).parents} & outs:
                _bring(clone / path, draft / path)
                if not any(name == str(path) or name.startswith(f"{path}/") for name in tracked):
                    with (draft / ".gitignore").open("a") as ignored:  # as git had it: not at all
                        ignored.write(f"/{path}\n")


def _bring(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.copytree(source, target, symlinks=True, copy_function=_link, dirs_exist_ok=True)
    elif source.is_file():
        _link(str(source), str(target))


def _link(source: str, target: str) -> None:
    """Link a file, or copy one that is written in place, or where its disk has no links."""
    try:
        if not source.endswith(WRITTEN_IN_PLACE):
            os.link(source, target)
            return
    except OSError:
        pass
    shutil.copy2(source, target)


def check_out(root: Path) -> None:
    """Bring what dvc.lock names from the cache into the workspace of a comparison that has its final place."""
    with opened(root) as repo, write_lock(repo):
        for out in (each for stage in repo.index.stages for each in stage.outs if each.hash_info and each.use_cache):
            out.checkout(force=True)
