"""The workspace of stages that run in the run's own working tree, with its DVC cache.

What a user put in the place of an output is kept aside before the output is replaced: it may be the only copy. What a
failed or killed stage left is not: a note for each stage that runs says so until its outputs are stored.
"""

import os
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from dvcfleet.dvc_adapter.objects import pull_missing_inputs, pull_outputs, remove_torn_of
from dvcfleet.dvc_adapter.protocols import Output, Repo, Stage
from dvcfleet.dvc_adapter.repositories import forget_ignored, is_committed, tracked_paths
from dvcfleet.dvc_adapter.run_cache import check_out, pull_run, save_run, save_sizes_of_dvc_2
from dvcfleet.dvc_adapter.stages import in_dvc_yaml, lock_entry_of
from dvcfleet.dvc_adapter.storing import (
    Seen,
    inputs_seen,
    is_edited,
    save_changed_inputs,
    save_inputs,
    save_output,
    size_of,
)
from dvcfleet.messages import Job, Outcome, Result
from dvcfleet.options import Options
from dvcfleet.planning.plan import FORCED, Plan, PlannedStage, State
from dvcfleet.planning.resources import Resources
from dvcfleet.repository import state_folder
from dvcfleet.worker.jobs import make_job
from dvcfleet.worker.output import log_path

FOLDER = "kept-aside"
_ATTEMPTS = "attempts"


def keep_aside(stage: Stage, say: Callable[[str], None]) -> None:
    """Move outputs aside that the stage did not write, no cache has and do not persist; report each in a line."""
    if not attempt(stage).exists():
        for out in filter(_is_lone, stage.outs):
            say(f"{out} was changed since {stage.addressing} wrote it, and is in no cache: kept as {_moved(out)}")


def attempt(stage: Stage) -> Path:
    """Return the path of the note that exists while the stage's command runs, until its outputs are stored."""
    return state_folder(stage.repo) / _ATTEMPTS / log_path(Path(), stage.addressing).stem


def _is_lone(out: Output) -> bool:
    if out.persist or not is_edited(out):
        return False
    return out.use_cache or not is_committed(out.repo, out.fs_path)


def _moved(out: Output) -> str:
    """Move an output aside; return where it is then, from the repository's root."""
    root = out.repo.root_dir
    folder = state_folder(out.repo) / FOLDER / time.strftime("%Y-%m-%d-%H-%M-%S")
    target, number = folder / os.path.relpath(out.fs_path, root), 1
    while target.exists():
        number += 1
        target = Path(f"{folder}-{number}", os.path.relpath(out.fs_path, root))
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.move(out.fs_path, target)
    return os.path.relpath(target, root)


# From this size (bytes), outputs are hashed and copied in a thread, not in the event loop.
LARGE_BYTES = 16_000_000


@dataclass
class LocalWorkspace:
    """The workspace of a run whose workers use its own files; `say` is called with a line for what is kept aside."""

    repo: Repo
    plan: Plan
    say: Callable[[str], None]
    _neighbours: dict[str, list[Output]] = field(default_factory=dict)
    _stored: set[str] = field(default_factory=set)
    # The inputs of the stages that run, as they were before.
    _seen: dict[str, Seen] = field(default_factory=dict)
    # The stages that ran or were restored: their readers run again with `force_downstream`.
    _renewed: set[str] = field(default_factory=set)
    # The stages whose outputs came from the run cache.
    from_run_cache: set[str] = field(default_factory=set)
    locality: None = None  # all machines see this working tree

    def __post_init__(self) -> None:
        for stage in self.plan.stages.values():
            for out in stage.outs:
                if out.use_scm_ignore:
                    self._neighbours.setdefault(out.fs.parent(out.fs_path), []).append(out)

    def prepare(self, stage: Stage, planned: PlannedStage) -> tuple[Result | None, str]:
        """Settle a stage without its command if possible, else prepare for that; return the result or None, and why."""
        if not planned.must_run:
            # Its upstream stages have ended since the plan was made, perhaps with the same bytes as before.
            planned = self._judge_now(stage, planned)
        why = ", ".join(planned.reasons)
        if planned.state is State.UP_TO_DATE:
            return Result.UP_TO_DATE, ""
        if planned.state is State.BLOCKED:
            return Result.BLOCKED, why
        if planned.outputs_known and self._checked_out(stage):
            return Result.RESTORED, why
        if not stage.cmd or stage.frozen:
            # An import, or data added by `dvc add`: DVC does it, and trusts objects that have the right name.
            for out in stage.outs:
                remove_torn_of(out)
            if stage.is_import and not stage.frozen:
                keep_aside(stage, self.say)
            asked = self.options
            self.hide_from_git(stage)
            stage.reproduce(force=asked.force, no_commit=asked.no_commit, allow_missing=asked.allow_missing)
            return Result.DONE, why
        keep_aside(stage, self.say)
        _clear_outs(stage)
        if planned.state is State.RESTORABLE and not self.options.pull:
            stage.repo.stage_cache.restore(stage)
            self.from_run_cache.add(stage.addressing)
            self._keep(stage)
            return Result.RESTORED, why
        if self.options.pull and planned.reasons != FORCED:
            pull_missing_inputs(stage)
            # Outputs that are known were pulled before, and are lost or damaged on the remote.
            if not planned.outputs_known and pull_run(stage, run_cache=not self.options.no_run_cache):
                self.from_run_cache.add(stage.addressing)
                self._keep(stage)
                return Result.RESTORED, why
        self._seen[stage.addressing] = seen = inputs_seen(stage)
        save_inputs(stage, seen=seen)
        attempt(stage).parent.mkdir(exist_ok=True)
        attempt(stage).touch()
        return None, why

    @property
    def options(self) -> Options:
        """What the run was asked for."""
        return self.plan.judge.options

    def _judge_now(self, stage: Stage, planned: PlannedStage) -> PlannedStage:
        if self.options.force_downstream and self._renewed.intersection(planned.needs):
            return replace(planned, state=State.STALE, reasons=FORCED, must_run=True, outputs_known=False)
        return self.plan.judge(stage)

    def _checked_out(self, stage: Stage) -> bool:
        """Put a stage's recorded outputs into the workspace, pulled if asked for; tell whether all are there."""
        keep_aside(stage, self.say)
        if self.options.pull and not pull_outputs(stage):
            return False
        if not self.options.pull:
            check_out(stage)
            attempt(stage).unlink(missing_ok=True)
            self._renewed.add(stage.addressing)
        self.hide_from_git(stage)
        save_sizes_of_dvc_2(stage)
        return True

    def job(self, stage: Stage, resources: Resources) -> Job:
        """Return the job for the stage's commands in this tree; remove its earlier log."""
        log_path(Path(self.repo.root_dir), stage.addressing).unlink(missing_ok=True)
        return make_job(stage, resources)

    def storing(self, stage: Stage, outcome: Outcome) -> Callable[[], None] | None:
        """Return a function that stores large outputs in DVC's cache, for a thread to call before `keep`, else None."""
        if sum(map(size_of, stage.outs)) < LARGE_BYTES:
            return None
        self.hide_from_git(stage)
        return partial(self._store, stage)

    def _store(self, stage: Stage) -> None:
        for out in stage.outs:
            if out.exists or not self.options.allow_missing:
                out.save() if self.options.no_commit else save_output(out)
        self._stored.add(stage.addressing)

    def keep(self, stage: Stage, outcome: Outcome) -> tuple[dict[str, Any] | None, list[str]]:
        """Store the outputs of a successful stage in DVC's cache, and its entry in the run cache.

        Returns the entry for dvc.lock, None for a .dvc file's stage, and which of its inputs changed meanwhile.
        """
        # What it wrote may be among its inputs, such as the bytecode of modules, and a user may have edited them.
        changed = save_changed_inputs(stage, self._seen.pop(stage.addressing))
        return self._keep(stage), changed

    def finish(self, fetch_results: bool) -> None:
        """Do nothing: everything is in the workspace."""

    def _keep(self, stage: Stage) -> dict[str, Any] | None:
        if stage.addressing not in self._stored:
            self.hide_from_git(stage)
            self._store(stage)
        self._stored.discard(stage.addressing)
        if not in_dvc_yaml(stage):
            stage.md5 = stage.compute_md5()
        self._renewed.add(stage.addressing)
        attempt(stage).unlink(missing_ok=True)
        entry = lock_entry_of(stage) if stage.cmd else None
        if (
            entry
            and not self.options.no_commit
            and not any(not out.use_cache for out in stage.outs if not (out.is_metric or out.is_plot))
        ):
            save_run(stage, entry)
        return entry if in_dvc_yaml(stage) else None

    def hide_from_git(self, stage: Stage) -> None:
        """Add all outputs of the plan in this stage's folders to their .gitignore, in the plan's order.

        If a later stage reads the whole folder, it also reads its .gitignore, which therefore must not depend on which
        stage ended first.
        """
        from dvc.output import OutputAlreadyTrackedError

        for out in stage.outs:
            if out.use_scm_ignore and out.fs_path in tracked_paths(self.repo):
                raise OutputAlreadyTrackedError(out)
        for folder in {out.fs.parent(out.fs_path) for out in stage.outs if out.use_scm_ignore}:
            if not (os.path.isdir(folder) and folder in self._neighbours):
                continue
            for out in self._neighbours.pop(folder):
                self.repo.scm_context.ignore(out.fs_path)
            # The files were read before: without this, each output would be added again when it is kept.
            forget_ignored(self.repo)


def _clear_outs(stage: Stage) -> None:
    """Remove what the stage wrote before, as `dvc repro` does; outputs to persist are made writable instead."""
    for out in stage.outs:
        if out.persist:
            out.unprotect()
        else:
            out.remove(ignore_remove=False)
