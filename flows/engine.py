"""The event loop of a run: submit what is ready, take back what is done, be the only writer of DVC's state."""

import os
import queue
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

from flows.lockfiles import LockFiles
from flows.plan import Node, Plan, State, judge_now
from flows.repository import tracked_paths
from flows.storing import save_inputs, save_output, save_run
from flows.worker import Job, Outcome, commands_of, resources, stage_environment

if TYPE_CHECKING:
    from dvc.output import Output
    from dvc.repo import Repo
    from dvc.stage import Stage


class Result(StrEnum):
    """How a stage came out of a run."""

    DONE = "done"
    UP_TO_DATE = "up to date"
    RESTORED = "restored"
    FAILED = "failed"
    BLOCKED = "blocked"
    STOPPED = "stopped"


@dataclass(frozen=True)
class Ending:
    """What became of one stage, and why where it did not go well."""

    name: str
    result: Result
    why: str = ""
    seconds: float = 0.0
    peak_rss_bytes: int = 0
    exit_code: int | None = None
    tail: tuple[str, ...] = ()


class Watcher(Protocol):
    """Somebody who is told what happens."""

    def began(self, name: str, why: str) -> None:
        """A stage's commands were submitted."""

    def ended(self, ending: Ending) -> None:
        """A stage is settled."""


@dataclass
class Run:
    """One run of a plan.

    `submit` takes a job and later puts its outcome on `outcomes`; `slots` is how many threads may be in use.
    `abandon` ends all commands that run, so that their outcomes come at once.
    """

    repo: "Repo"
    plan: Plan
    locks: LockFiles
    submit: Callable[[Job], None]
    outcomes: "queue.SimpleQueue[Outcome]"
    watcher: Watcher
    slots: int
    hosts: tuple[str, str]
    abandon: Callable[[], None]
    endings: dict[str, Ending] = field(default_factory=dict)
    _waiting: dict[str, set[str]] = field(default_factory=dict)
    _readers: dict[str, list[str]] = field(default_factory=dict)
    _ready: list[str] = field(default_factory=list)
    _running: dict[str, int] = field(default_factory=dict)
    _stopping: bool = False
    _neighbours: dict[str, list["Output"]] = field(default_factory=dict)

    def execute(self) -> dict[str, Ending]:
        """Run until every stage is settled; return how each ended, in the plan's order."""
        self._begin()
        try:
            while self._ready or self._running:
                self._start_ready()
                if self._running:
                    self._take(self.outcomes.get())
        except KeyboardInterrupt:
            self._stop()
        finally:
            self.locks.flush()
        self.endings = {name: self.endings[name] for name in self.plan.nodes}
        return self.endings

    def _begin(self) -> None:
        nodes = self.plan.nodes.values()
        self._readers = {node.name: [] for node in nodes}
        self._waiting = {node.name: set(node.needs) for node in nodes}
        for node in nodes:
            for need in node.needs:
                self._readers[need].append(node.name)
            for out in self.plan.stages[node.name].outs:
                if out.use_scm_ignore:
                    self._neighbours.setdefault(out.fs.parent(out.fs_path), []).append(out)
        for node in nodes:
            if node.state is State.UP_TO_DATE:
                self.endings[node.name] = Ending(node.name, Result.UP_TO_DATE)
            elif node.state is State.BLOCKED:
                self._end(Ending(node.name, Result.BLOCKED, "; ".join(node.reasons)))
        for name, needs in self._waiting.items():
            needs.difference_update(self.endings)
            if not needs and name not in self.endings:
                self._ready.append(name)

    def _start_ready(self) -> None:
        """Settle what needs no command, and submit what does while there is room."""
        skipped = []
        while self._ready and self.slots > sum(self._running.values()):
            name = self._ready.pop(0)
            stage = self.plan.stages[name]
            threads = min(resources(stage)[0], self.slots)
            if threads > self.slots - sum(self._running.values()):
                skipped.append(name)
                continue
            self._start(name, stage, threads)
        self._ready = skipped + self._ready

    def _start(self, name: str, stage: "Stage", threads: int) -> None:
        from dvc.exceptions import DvcException

        try:
            result, why = prepare(stage, self.plan.nodes[name], self._hide_from_git)
            if result in (Result.RESTORED, Result.DONE):
                self._record(stage)
        except (DvcException, OSError) as error:
            self._end(Ending(name, Result.FAILED, str(error)))
            return
        if result is not None:
            self._end(Ending(name, result, why))
            return
        self._running[name] = threads
        self.watcher.began(name, why)
        self.submit(make_job(stage, threads, self.hosts))

    def _take(self, outcome: Outcome) -> None:
        del self._running[outcome.name]
        # Others can run while this one's outputs are put away.
        self._start_ready()
        self._finish(outcome)

    def _finish(self, outcome: Outcome) -> None:
        from dvc.exceptions import DvcException

        stage = self.plan.stages[outcome.name]
        result, why = Result.DONE, ""
        # Once the run is stopped, a command that ended badly was most likely stopped too, by the same Ctrl-C.
        if outcome.exit_code is None or (self._stopping and outcome.exit_code):
            result, why = Result.STOPPED, "stopped before it ended"
        elif outcome.exit_code:
            result, why = Result.FAILED, _exit_words(outcome.exit_code)
        else:
            try:
                self._record(stage, keep(stage, self._hide_from_git))
            except (DvcException, OSError) as error:
                result, why = Result.FAILED, str(error)
        self._end(
            Ending(outcome.name, result, why, outcome.seconds, outcome.peak_rss_bytes, outcome.exit_code, outcome.tail)
        )

    def _record(self, stage: "Stage", entry: dict[str, Any] | None = None) -> None:
        if hasattr(stage, "name"):
            self.locks.record(stage, entry)
        else:
            stage.dump(update_pipeline=False)

    def _hide_from_git(self, stage: "Stage") -> None:
        """Put all outputs of the plan that go into this stage's folders into their .gitignore, in the plan's order.

        Where a later stage reads the whole folder, its .gitignore is part of what it reads: it must not depend on
        which stage ended first.
        """
        from dvc.output import OutputAlreadyTrackedError

        for out in stage.outs:
            if out.use_scm_ignore and out.fs_path in self._tracked:
                raise OutputAlreadyTrackedError(out)
        for folder in {out.fs.parent(out.fs_path) for out in stage.outs if out.use_scm_ignore}:
            if not (os.path.isdir(folder) and folder in self._neighbours):
                continue
            for out in self._neighbours.pop(folder):
                self.repo.scm_context.ignore(out.fs_path)
            # The files were read before: without this, each output would be added once more when it is kept.
            self.repo.scm._reset()

    @cached_property
    def _tracked(self) -> frozenset[str]:
        return tracked_paths(self.repo)

    def _end(self, ending: Ending) -> None:
        self.endings[ending.name] = ending
        self.watcher.ended(ending)
        passed = ending.result in (Result.DONE, Result.RESTORED, Result.UP_TO_DATE)
        for reader in self._readers[ending.name]:
            if reader in self.endings:
                continue
            if not passed:
                self._end(Ending(reader, Result.BLOCKED, f"{ending.name} {ending.result}"))
                continue
            self._waiting[reader].discard(ending.name)
            if not self._waiting[reader]:
                self._ready.append(reader)

    def _stop(self) -> None:
        """Take what has ended, end what has not, and mark the rest as stopped."""
        self._stopping = True
        self.abandon()
        while self._running:
            outcome = self.outcomes.get()
            del self._running[outcome.name]
            self._finish(outcome)
        for name in self.plan.nodes:
            if name not in self.endings:
                self.endings[name] = Ending(name, Result.STOPPED, "the run was stopped")


def prepare(stage: "Stage", node: Node, hide: Callable[["Stage"], None]) -> tuple[Result | None, str]:
    """Settle a stage without running it if that can be, else make all ready for its command.

    Returns the result, or None if the command must run, and the reason.
    """
    if not node.certain:
        # What it reads from has ended since the plan was made: maybe with the same bytes as before.
        node = judge_now(stage)
    why = ", ".join(node.reasons)
    if node.state is State.UP_TO_DATE:
        return Result.UP_TO_DATE, ""
    if node.state is State.BLOCKED:
        return Result.BLOCKED, why
    if node.settled:
        stage.checkout(force=True)
        hide(stage)
        return Result.RESTORED, why
    if not stage.cmd or stage.frozen:
        # An import, or data under DVC's own care: DVC knows what to do.
        stage.reproduce()
        return Result.DONE, why
    _clear_outs(stage)
    if node.state is State.RESTORABLE:
        stage.repo.stage_cache.restore(stage)
        keep(stage, hide)
        return Result.RESTORED, why
    save_inputs(stage)
    return None, why


def _clear_outs(stage: "Stage") -> None:
    """Take away what the stage wrote before, as `dvc repro` does; outputs to persist are made writable instead."""
    for out in stage.outs:
        if out.persist:
            out.unprotect()
        else:
            out.remove(ignore_remove=False)


def keep(stage: "Stage", hide: Callable[["Stage"], None]) -> dict[str, Any] | None:
    """Put a stage's outputs into DVC's cache and its entry into the run cache; `hide` hides them from git first.

    Returns the entry for dvc.lock; None for a .dvc file's stage. The hashes of its inputs stay those from before it
    ran: what was edited meanwhile, it did not read.
    """
    from dvc.stage.serialize import to_single_stage_lockfile

    hide(stage)
    for out in stage.outs:
        save_output(out)
    if not hasattr(stage, "name"):
        stage.md5 = stage.compute_md5()
    entry = to_single_stage_lockfile(stage) if stage.cmd else None
    if entry and not any(not out.use_cache for out in stage.outs if not (out.is_metric or out.is_plot)):
        save_run(stage, entry)
    return entry if hasattr(stage, "name") else None


def make_job(stage: "Stage", threads: int, hosts: tuple[str, str]) -> Job:
    """Return what a worker needs to run the stage's command."""
    shell_host, warm_host = hosts
    return Job(
        name=stage.addressing,
        commands=commands_of(stage),
        folder=stage.wdir,
        environment=stage_environment(stage, threads),
        clear=tuple(out.fs_path for out in stage.outs if not out.persist and out.protocol == "local"),
        threads=threads,
        retries=resources(stage)[1],
        shell_host=shell_host,
        warm_host=warm_host,
    )


def _exit_words(code: int) -> str:
    return f"exit code {code}" if code > 0 else f"killed by signal {-code}"
