"""Carry dvc.lock of version 0.1.0 over: its stages were `python -m tasks.X`, and depended on listings of their code.

A stage is kept if it is the same but for its command and for code that writes the same bytes; the ledger says that
names alone changed, and which stage ran.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dvcfleet.crash_recovery import recovered_lock_files, sync
from dvcfleet.dvc_adapter.lockfiles import lock_file_of, read_lock_file
from dvcfleet.dvc_adapter.protocols import Dependency, PipelineStage, Repo, Stage
from dvcfleet.dvc_adapter.repositories import forget_index
from dvcfleet.dvc_adapter.stages import fill_from_lock, in_dvc_yaml, lock_entry_of, varying
from dvcfleet.dvc_adapter.storing import save_input, save_inputs, save_output
from dvcfleet.errors import some
from dvcfleet.messages import Ending, Result
from dvcfleet.record.ledger import Ledger
from dvcfleet.repository import state_folder
from merganser.flows.repositories.identity import identity
from merganser.tasks.code import recorded_code, write_code
from merganser.tasks.code_record import Digest
from merganser.tasks.stage import LISTINGS, code_tree
from merganser.tasks.stages import CODE

LOCK = Path("dvc.lock")
RUN = "update"  # in the ledger, in the place of a run's name
_OLD = "python -m tasks."
_SHOWN = 8  # stages that are named


def carry_over(repo: Repo) -> list[str]:
    """Write the dvc.lock of a repository whose lock is held as this version would have; return what there is to say."""
    path = os.path.join(repo.root_dir, LOCK)
    entries = read_lock_file(path) if os.path.isfile(path) else {}
    is_old = any(str(entry.get("cmd")).startswith(_OLD) for entry in entries.values())
    if not is_old or (CODE / LISTINGS).is_file():  # what is old after that runs again
        return []
    before, hashes = recorded_code(Path(), code_tree()), _code_hashes(repo)
    ledger = Ledger(state_folder(repo), RUN, lambda: None, identity(Path(repo.root_dir)))
    locks = recovered_lock_files(repo, state_folder(repo))
    stages = [stage for stage in repo.index.stages if in_dvc_yaml(stage) and lock_file_of(stage) == path]
    kept, again = list[str](), list[str]()
    write_code()
    for stage in sorted(stages, key=lambda each: each.name != CODE.name):
        entry = entries.get(stage.name)
        if stage.name == CODE.name:
            save_inputs(stage)
            for out in stage.outs:
                save_output(out)
            ledger.note(Ending(stage.addressing, Result.DONE), locks.record(stage), varying(stage))
        elif entry and (now := _converted(stage, entry, before, hashes)):
            locks.record(stage, now)
            ledger.note(Ending(stage.addressing, Result.RENAMED), now, varying(stage), (stage.addressing, entry))
            kept.append(stage.addressing)
        elif entry:
            again.append(stage.addressing)
    locks.flush()
    locks.settle()
    sync(repo, state_folder(repo))
    forget_index(repo)
    said = [f"of version 0.1.0: {len(kept)} stages keep their results"]
    return said + [f"{len(again)} run again, whose code has other results: {some(again, _SHOWN)}"] * bool(again)


def _code_hashes(repo: Repo) -> dict[str, str | None]:
    """Return the hashes of what stages depend on in `data/code`, as it is there now."""
    found = dict[str, str | None]()
    for dep in (dep for stage in repo.index.stages for dep in _code_of(stage)):
        if dep.def_path not in found and os.path.exists(dep.fs_path):
            save_input(dep)
            found[dep.def_path] = dep.hash_info.value
    return found


def _code_of(stage: Stage) -> list[Dependency]:
    return [dep for dep in stage.deps if dep.def_path.startswith(f"{CODE}/")]


def _converted(
    stage: PipelineStage, entry: Mapping[str, Any], before: Mapping[str, Digest], hashes: Mapping[str, str | None]
) -> dict[str, Any] | None:
    """Return a stage's entry as the installed package writes it; None where that would not write the same.

    `before`, `hashes`: what `data/code` held, and the hashes of that: of code of another time nothing is known.
    """
    code = _code_of(stage)
    recorded = {dep["path"]: dep.get("md5") for dep in entry.get("deps", ())}
    if not all(recorded.get(dep.def_path) == hashes.get(dep.def_path) for dep in code):
        return None
    if not all(_is_known(dep.def_path, before) for dep in code):
        return None
    fill_from_lock(stage, entry)
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
