"""Undo the rename of a task that was killed, so that finished stages do not run again."""

import os
from collections.abc import Collection, Mapping
from contextlib import suppress

from dvcfleet.disk import read_json
from dvcfleet.dvc_adapter.protocols import Repo, Stage
from dvcfleet.dvc_adapter.repositories import forget_index
from dvcfleet.dvc_adapter.stages import kind_of
from dvcfleet.repository import state_folder
from merganser.config import PARAMS
from merganser.config.loading import check_params
from merganser.config.points import write_points
from merganser.config.text import renamed
from merganser.errors import InputError
from merganser.limits import parse_yaml, read_small
from merganser.outputs import replacing

NOTE = "renaming.json"  # in the state folder while files are moved: the names, and the stages that were up to date


def take_back(repo: Repo) -> list[str]:
    """Undo a rename that was killed before it wrote dvc.lock; return what to tell the user."""
    note, said = state_folder(repo) / NOTE, list[str]()
    if renaming := read_json(note):
        old, new = renaming["old"], renaming["new"]
        with suppress(InputError):  # of a params.yaml in which somebody named the task since
            _restore(repo, old, new, renaming["current"])
            said.append(f"`merganser rename {old} {new}` did not end: the task is {old} again, with all results")
        note.unlink()
    return said


def _restore(repo: Repo, old: str, new: str, current: Collection[str]) -> None:
    """Restore params.yaml and the outputs of up-to-date stages to their state before a rename."""
    text = read_small(PARAMS).decode()
    if new not in parse_yaml(text, str(PARAMS))["tasks"]:
        text = renamed(text, old, new, str(PARAMS))
    now, before = (with_params(repo, each) for each in (text, renamed(text, new, old, str(PARAMS))))
    was = dict(zip(now, before, strict=True))
    (state_folder(repo) / "journal").unlink(missing_ok=True)
    for there, here in moves(was, current):
        if os.path.lexists(here) and not os.path.lexists(there):
            os.replace(here, there)
    for out in (out for stage in before if stage.addressing in current for out in stage.outs):
        out.checkout(force=True)


def with_params(repo: Repo, text: str) -> list[Stage]:
    """Write params.yaml and its list of points; list the stages as in `named_by_tasks`."""
    with replacing(PARAMS) as out:
        out.write(text.encode())
    write_points(check_params(parse_yaml(text, str(PARAMS)), PARAMS, text=text))
    forget_index(repo)
    return named_by_tasks(repo)


def moves(was: Mapping[Stage, Stage], current: Collection[str]) -> list[tuple[str, str]]:
    """List the old and new paths of up-to-date stages' outputs that the rename moves."""
    pairs = [
        (there.fs_path, here.fs_path)
        for stage, old in was.items()
        if old.addressing in current
        for there, here in zip(old.outs, stage.outs, strict=True)
    ]
    return [(there, here) for there, here in pairs if there != here]


def named_by_tasks(repo: Repo) -> list[Stage]:
    """List the stages without points, which are named by digests instead of tasks."""
    return [stage for stage in repo.index.stages if kind_of(stage.addressing) not in ("point", "step")]
