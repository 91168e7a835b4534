"""Rename a task: edit params.yaml, and keep under the new name what does not follow from the old one.

A stage is kept if its outputs have the same bytes whatever the tasks are called (`nameless` in `tasks.stages`). So is a
merge by a method that does not draw by name, if the tasks keep their order: only its card, the index of its parts and
their size name tasks, and are rewritten. Then dvc.lock is as a run under the new name would have written it; the ledger
says that names alone changed, and which stage ran.

While files are moved, the state folder has a note of both names (`steps.renames`).
"""

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dvcfleet.crash_recovery import recovered_lock_files, sync
from dvcfleet.disk import write_durably
from dvcfleet.dvc_adapter.protocols import Repo, Stage
from dvcfleet.dvc_adapter.stages import in_dvc_yaml, kind_of, lock_entry_of, stage_graph, varying
from dvcfleet.dvc_adapter.storing import save_inputs, save_output
from dvcfleet.errors import FailedError, some
from dvcfleet.messages import Ending, Result
from dvcfleet.options import Options
from dvcfleet.planning.orphans import find_orphans, forget_orphans, remove_outputs
from dvcfleet.planning.plan import State, validated_plan
from dvcfleet.record.ledger import Ledger
from dvcfleet.repository import opened, state_folder, write_lock
from merganser import registry
from merganser.config import PARAMS
from merganser.config.loading import check_params
from merganser.config.params import Params
from merganser.config.sections import Entry
from merganser.config.text import renamed
from merganser.errors import InputError
from merganser.flows.repositories.identity import identity
from merganser.flows.steps.renames import NOTE, moves, named_by_tasks, take_back, with_params
from merganser.flows.steps.undeclared import follow_declared
from merganser.inputs.joints import DELTAS
from merganser.limits import parse_yaml, read_small
from merganser.merging.method import Method
from merganser.outputs import read_json, replacing, write_json
from merganser.overlays import FILE
from merganser.overlays.index import rename_tasks
from merganser.tasks.merge import card_of
from merganser.tasks.stages import JOINTS, MERGE_PROFILES, MERGED, STAGES

RUN = "rename"  # in the ledger, in the place of a run's name
INPUTS = ("cmd", "deps", "params")  # of an entry of dvc.lock
ALL = Options(all_pipelines=True)
SHOWN = 8  # stages that are named


@dataclass(frozen=True)
class Names:
    """A task's old and new names, and the params.yaml with the new one."""

    old: str
    new: str
    params: Params

    @property
    def keep_order(self) -> bool:
        """Tell whether the tasks keep their order by name, which is the order of sums over them."""
        now = sorted(self.params.tasks)
        return sorted(self.old if name == self.new else name for name in now).index(self.old) == now.index(self.new)

    def differ_alone(self, now: str, before: str) -> bool:
        """Tell whether a stage's old and new names differ in the task's name alone."""
        places = [place for place in range(len(before)) if before.startswith(self.old, place)]
        replaced = {before[:place] + self.new + before[place + len(self.old) :] for place in places}
        return now == before or now in replaced


def rename(root: Path, old: str, new: str) -> Iterator[str]:
    """Rename a task in the repository at `root`; say which results are kept and which stages will run.

    Raises InputError if there is no such task or the new name is refused, BusyError while a run is at work.
    """
    with opened(root) as repo, write_lock(repo):
        said = take_back(repo)
        text = renamed(read_small(PARAMS).decode(), old, new, str(PARAMS))
        names = Names(old, new, check_params(parse_yaml(text, str(PARAMS)), PARAMS, text=text))
        validated_plan(repo, ALL)
        follow_declared(repo, recovered_lock_files(repo, state_folder(repo)), said.append)
        planned = validated_plan(repo, ALL).planned
        before = named_by_tasks(repo)
        current = {name for name, stage in planned.items() if stage.state is State.UP_TO_DATE}
        text = renamed(read_small(PARAMS).decode(), old, new, str(PARAMS))  # the plan wrote what it left out
        note = {"old": old, "new": new, "current": sorted(current)}
        write_durably(state_folder(repo) / NOTE, json.dumps(note))
        now = with_params(repo, text)
        was = dict(zip(now, before, strict=True))  # in dvc.yaml's order, and in that of its maps
        if not all(names.differ_alone(stage.addressing, was[stage].addressing) for stage in was):
            (state_folder(repo) / NOTE).unlink()
            raise FailedError(
                f"{PARAMS}: {old} is {new}; its results are not found among DVC's stages, so its stages run again"
            )
        if taken := [here for _, here in moves(was, current) if os.path.lexists(here)]:
            take_back(repo)
            raise InputError(
                f"{os.path.relpath(taken[0])}: move it away, for the results of {old} would be written there"
            )
        kept, again = _keep(repo, was, current, names)
        _remove_old(repo, {stage.addressing for stage in before})
        sync(repo, state_folder(repo))
    yield from said
    yield f"{old} is {new} in {PARAMS}; {len(kept)} of {len(current)} stages that were up to date keep their results"
    if again and not names.keep_order:
        yield "the names of the tasks have another order, in which merges add them up: these are made again"
    if again:
        yield f"the next run runs {len(again)}, which name it or follow from it: {some(again, SHOWN)}"


def _keep(repo: Repo, was: Mapping[Stage, Stage], current: set[str], names: Names) -> tuple[list[str], list[str]]:
    """Record the kept stages under their new names; return them, and the current stages that are not kept."""
    graph, order = stage_graph(repo, ALL)
    locks = recovered_lock_files(repo, state_folder(repo))
    ledger = Ledger(state_folder(repo), RUN, lambda: None, identity(Path(repo.root_dir)))
    kept, again = list[str](), list[str]()
    for stage in order:
        old = was.get(stage)
        if old is None:  # a point, whose id follows from the tasks' names
            again.append(stage.addressing)
            continue
        if old.addressing not in current:
            continue
        entry, reads_kept = lock_entry_of(old), not any(up.addressing in again for up in graph.successors(stage))
        if reads_kept and (not in_dvc_yaml(stage) or _is_as_before(stage, old, entry)):
            kept.append(stage.addressing)
        elif reads_kept and in_dvc_yaml(stage) and _is_nameless(stage.name, names):
            kept.append(stage.addressing)
            for there, here in zip(old.outs, stage.outs, strict=True):
                if there.fs_path != here.fs_path:
                    os.replace(there.fs_path, here.fs_path)
            _write_names(stage.name, names)
            for out in stage.outs:
                save_output(out)
            now = locks.record(stage)
            ledger.note(Ending(stage.addressing, Result.RENAMED), now, varying(stage), (old.addressing, entry))
        else:
            again.append(stage.addressing)
    (state_folder(repo) / NOTE).unlink()  # from here on the journal has all of it
    locks.flush()
    locks.settle()
    return kept, again


def _is_as_before(stage: Stage, old: Stage, entry: Mapping[str, Any]) -> bool:
    """Tell whether a stage's name and all its inputs are as in its dvc.lock entry."""
    save_inputs(stage)
    now = lock_entry_of(stage)
    return stage.addressing == old.addressing and all(now.get(key) == entry.get(key) for key in INPUTS)


def _is_nameless(stage: str, names: Names) -> bool:
    """Tell whether a stage writes the same output from the same inputs, apart from names."""
    kind, entry = kind_of(stage), names.params.methods.get(stage.partition("@")[2])
    if kind == "merge" and entry is not None:
        method, values = _bound(entry)
        sized = "adaptive" in str(values)  # by the bytes of parts, and names are among them
        return names.keep_order and not (sized or method.at_run_time or method.is_random(values))
    follows = (kind == "join" and not names.keep_order) or (kind == "fetch_base" and names.params.base.is_mean)
    return kind in STAGES and STAGES[kind].nameless and not follows


def _bound(entry: Entry) -> tuple[Method, dict[str, Any]]:
    """Return an entry's method and its checked values."""
    method = registry.get(entry.method)
    return method, method.validate(entry.method, entry.values)


def _write_names(stage: str, names: Names) -> None:
    """Replace the old name in a stage's outputs."""
    kind, _, key = stage.partition("@")
    if kind == "join":
        folder = JOINTS / key / DELTAS
        os.replace(folder / f"{names.old}.safetensors", folder / f"{names.new}.safetensors")
    if kind != "merge":
        return
    method, values = _bound(names.params.methods[key])
    if (parts := MERGED / key / FILE).is_file():
        before = parts.stat().st_size
        rename_tasks(parts, {names.old: names.new})
        profile, count = read_json(MERGE_PROFILES / f"{key}.json"), len(names.params.tasks)
        merged = round(before / count / profile["amr"])  # bytes: as in merganser.merging.entry
        write_json(MERGE_PROFILES / f"{key}.json", profile | {"amr": parts.stat().st_size / count / merged})
    for name, text in card_of(key, names.params, method, values, names.params.first_seed).items():
        with replacing(MERGED / key / name) as out:
            out.write(text.encode())


def _remove_old(repo: Repo, names: set[str]) -> None:
    """Remove what is left of stages with the old name from dvc.lock and the workspace; DVC's cache keeps it."""
    locks = recovered_lock_files(repo, state_folder(repo))
    orphans = [orphan for orphan in find_orphans(repo) if orphan.name in names]
    for orphan in orphans:
        remove_outputs(repo, orphan)
    forget_orphans(locks, orphans)
