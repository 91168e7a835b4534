"""Take a comparison out of a clone of Merganser's repository, into a repository that has no code of Merganser's.

Its choices, what it reads, its cache, MLflow's store, ledger, and git's history with the saved runs come along. What
ran by code that writes the same bytes as the installed one's is up to date there: dvc.lock names the installed
package's commands and classes of code, and the ledger says that names alone changed.
"""

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dvcfleet.crash_recovery import recovered_lock_files, sync
from dvcfleet.disk import sync_file_systems
from dvcfleet.dvc_adapter.lockfiles import lock_file_of, read_lock_file
from dvcfleet.dvc_adapter.protocols import PipelineStage
from dvcfleet.dvc_adapter.stages import fill_from_lock, in_dvc_yaml, lock_entry_of, varying
from dvcfleet.dvc_adapter.storing import save_input, save_inputs, save_output
from dvcfleet.git import git, own_environment
from dvcfleet.messages import Ending, Result
from dvcfleet.record.ledger import Ledger
from dvcfleet.repository import STATE_FOLDER, opened, state_folder, write_lock
from merganser.config.loading import load_params
from merganser.errors import InputError, some
from merganser.flows.signing import RECORDED, SIGNATURES
from merganser.flows.suites import PARAMS, sources_of
from merganser.tasks.code import recorded_code, write_code
from merganser.tasks.code_record import RECORD, Digest
from merganser.tasks.stage import code_tree
from merganser.tasks.stages import CODE
from merganser.tasks.tracking import ARTIFACTS, STORE

LOCK = Path("dvc.lock")
SHOWN = 8  # stages that are named
RUN = "update"  # in the ledger, in the place of a run's name
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
        kept, again = convert(root)
        lines = [f"{folder}: the comparison of {self.path}; {len(kept)} stages keep their results"]
        return lines + [f"{len(again)} run again, whose code has other results: {some(again, SHOWN)}"] * bool(again)


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


def convert(root: Path) -> tuple[list[str], list[str]]:
    """Write dvc.lock as the installed package would have; return the stages that are kept, and those that are not.

    A stage is kept if it is the same but for its command and for code that writes the same bytes.
    """
    kept, again = list[str](), list[str]()
    with opened(root) as repo, write_lock(repo):
        before = recorded_code(root, code_tree())
        entries = read_lock_file(LOCK)
        ledger = Ledger(state_folder(repo), RUN, lambda: None)
        locks = recovered_lock_files(repo, state_folder(repo))
        write_code()
        path = os.path.join(repo.root_dir, LOCK)
        stages = [stage for stage in repo.index.stages if in_dvc_yaml(stage) and lock_file_of(stage) == path]
        for stage in sorted(stages, key=lambda each: each.name != CODE.name):
            if stage.name == CODE.name:
                save_inputs(stage)
                for out in stage.outs:
                    save_output(out)
                ledger.note(Ending(stage.addressing, Result.DONE), locks.record(stage), varying(stage))
            elif stage.name in entries:
                entry = entries[stage.name]
                if now := _converted(stage, entry, before):
                    locks.record(stage, now)
                    was = (stage.addressing, entry)
                    ledger.note(Ending(stage.addressing, Result.RENAMED), now, varying(stage), was)
                    kept.append(stage.addressing)
                else:
                    again.append(stage.addressing)
        locks.flush()
        locks.settle()
        sync(repo, state_folder(repo))
    sync_file_systems([root])
    return kept, again


def check_out(root: Path) -> None:
    """Bring what dvc.lock names from the cache into the workspace of a comparison that has its final place."""
    with opened(root) as repo, write_lock(repo):
        for out in (each for stage in repo.index.stages for each in stage.outs if each.hash_info and each.use_cache):
            out.checkout(force=True)


def _converted(stage: PipelineStage, entry: Mapping[str, Any], before: Mapping[str, Digest]) -> dict[str, Any] | None:
    """Return a stage's entry as the installed package writes it; None where that would not write the same."""
    fill_from_lock(stage, entry)
    code = [dep for dep in stage.deps if dep.def_path.startswith(f"{CODE}/")]
    if not all(_is_known(dep.def_path, before) for dep in code):
        return None
    for dep in code:
        save_input(dep)
    now = lock_entry_of(stage)
    kept = all(_named(now, key) == _named(entry, key) for key in ("deps", "outs"))
    return now if kept and now.get("params") == entry.get("params") else None


def _is_known(path: str, before: Mapping[str, Digest]) -> bool:
    """Tell whether a file of classes, or each file in a folder of them, says what it said before."""
    place = Path(path)
    files = list(place.rglob("*.txt")) if place.is_dir() else [place]
    names = {each.relative_to(CODE).as_posix(): each.read_text(encoding="utf-8").strip() for each in files}
    there = {name for name in before if (CODE / name) == place or place in (CODE / name).parents}
    return names.keys() == there and all(before[name].of == of for name, of in names.items())


def _named(entry: Mapping[str, Any], key: str) -> dict[str, Any]:
    """Return the hashes of an entry's dependencies or outputs, by their paths, but for those of code."""
    found = {each["path"]: {k: v for k, v in each.items() if k != "path"} for each in entry.get(key, ())}
    return {path: None if path.startswith(f"{CODE}/") else hashes for path, hashes in found.items()}
