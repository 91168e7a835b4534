"""Targets of lineage: a stage, a file that a stage wrote, or a name that the repository's project knows."""

import os
from pathlib import Path

from dvcfleet.dvc_adapter.protocols import Repo
from dvcfleet.dvc_adapter.stage_graph import called_from_here
from dvcfleet.errors import UserError, did_you_mean
from dvcfleet.lineage.contents import path_from_root
from dvcfleet.lineage.hooks import hooks_of
from dvcfleet.lineage.steps import Target
from dvcfleet.paths import from_root, is_at_or_in, overlap


def find_target(repo: Repo, text: str, folder: Path) -> Target:
    """Find a stage, an output or a file in one, by a path from `folder`, or a name of the repository's project.

    Raises UserError if there is none of that name, or if several stages wrote into a folder.
    """
    hooks = hooks_of(Path(repo.root_dir))
    stages = {stage.addressing: stage for stage in repo.index.stages}
    if text in stages:
        return Target(text, (text,), tuple(map(path_from_root, stages[text].outs)))
    found = target_of_file(repo, called_from_here(repo, folder, text)) or hooks.find(repo, text)
    if found:
        return found
    offer = did_you_mean(text, [*stages, *hooks.names()])
    raise UserError(f"{text}: no stage, output or name of the project{offer}; give a stage or a file that one wrote")


def target_of_file(repo: Repo, text: str) -> Target | None:
    """Return the target that a path names: a stage's output, or a file in one."""
    name = from_root(repo.root_dir, os.path.abspath(text))
    near = {out: each for each in repo.index.stages for out in map(path_from_root, each.outs) if overlap(name, out)}
    holding = [stage for out, stage in near.items() if is_at_or_in(name, out)]
    if holding:
        return Target(text, (holding[0].addressing,), (name,))
    if near:
        some = f"{len(near)} outputs, such as {next(iter(near))}"
        raise UserError(f"{text}: a folder of {some}; name one of them")
    if os.path.exists(text):
        raise UserError(f"{text}: no stage wrote it; name an output that was made from it")
    return None
