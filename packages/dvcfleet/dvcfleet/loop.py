"""The event loop of a run: submit ready stages and process their outcomes; it is the only writer of DVC's state."""

from collections.abc import Callable, Collection, Mapping, Sequence, Set
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from dvcfleet.console import Progress
from dvcfleet.dvc_adapter.lockfiles import LockFiles
from dvcfleet.dvc_adapter.protocols import Stage
from dvcfleet.dvc_adapter.repositories import with_cause
from dvcfleet.dvc_adapter.repository_lock import DvcLock
from dvcfleet.dvc_adapter.stages import in_dvc_yaml, varying
from dvcfleet.errors import ExecutorLostError
from dvcfleet.lineage.live import Events
from dvcfleet.messages import Ending, Job, Outcome, Result
from dvcfleet.planning.plan import Plan, State
from dvcfleet.planning.resources import Resources
from dvcfleet.process_settings import Stop
from dvcfleet.record.ledger import Ledger
from dvcfleet.scheduling.durations import Durations
from dvcfleet.scheduling.order import Dependencies, ReadyStages
from dvcfleet.scheduling.resource_pool import Allocation, ResourcePool
from dvcfleet.scheduling.retries import LOOK_S, NodeWatch, Retries, predecessors
from dvcfleet.terminal.secrets import masked
from dvcfleet.workspaces.local import LocalWorkspace
from dvcfleet.workspaces.nodes.workspace import NodeWorkspace
from dvcfleet.workspaces.undeclared_files import UndeclaredFiles

if TYPE_CHECKING:
    from dvcfleet.prefect_adapter.flow import PrefectExecutor

# The number of stages whose large outputs are hashed and copied in parallel.
_STORING_THREADS = 4
# After this time without an outcome, or a few writes' time if that is longer, DVC's lock is released.
IDLE_S = 0.1
_GOOD = (Result.DONE, Result.RESTORED, Result.UP_TO_DATE)
# When a run is being stopped, the time to wait for the next stage to end.
STOP_LIMIT_S = 60.0


@dataclass(frozen=True)
class Work:
    """The work of a run: a plan, each stage's requests, and expected durations.

    With `in_order`, stages run one at a time in the order of `dvc repro`; with `halts`, none starts after a
    failure. Stages of one of the `groups` run one at a time. `wanted_first`: as a project's.
    """

    plan: Plan
    resources: dict[str, Resources]
    durations: Durations
    groups: Mapping[str, str] = field(default_factory=dict)
    wanted_first: Callable[[Mapping[str, Sequence[str]]], Collection[str]] = lambda needs: ()
    in_order: bool = False
    halts: bool = False


@dataclass(frozen=True)
class Place:
    """The place of a run's stages and their outputs: the workspace, and the executor with its pool.

    DVC's `lock` is held while DVC's state is read or written. `on_nodes`: what each stage takes of a cluster's
    nodes, if that may be less than it requests.
    """

    lock: DvcLock
    lock_files: LockFiles
    workspace: LocalWorkspace | NodeWorkspace
    undeclared: UndeclaredFiles
    executor: "PrefectExecutor"
    pool: ResourcePool
    on_nodes: dict[str, Resources] | None = None


@dataclass(frozen=True)
class Listeners:
    """The listeners to each stage: the console, the ledger, lineage's events and the project's `while_running`."""

    progress: Progress
    ledger: Ledger
    events: Events = field(default_factory=Events)
    on_ended: Callable[[Set[str], str], None] = lambda ended, latest: None


@dataclass
class RunLoop:
    """The loop of one run: the executor runs the plan's stages, in parallel as far as the pool allows."""

    work: Work
    place: Place
    told: Listeners
    stop: Stop = field(default_factory=Stop)
    stopping: bool = False
    endings: dict[str, Ending] = field(default_factory=dict)
    _dependencies: Dependencies = field(init=False)
    _ready: ReadyStages = field(init=False)
    _jobs: dict[str, Job] = field(default_factory=dict)
    _storing: dict[str, tuple[Outcome, Future[None]]] = field(default_factory=dict)
    _retries: Retries = field(init=False)
    _nodes: NodeWatch = field(init=False)
    _entries: dict[str, dict[str, Any]] = field(default_factory=dict)

    def execute(self) -> dict[str, Ending]:
        """Run until every stage is settled; return how each ended, in the plan's order."""
        with self.place.lock.held(), ThreadPoolExecutor(_STORING_THREADS) as self._threads:
            self._begin()
            try:
                while self._ready or self.place.pool.given or self._storing:
                    self._start_ready()
                    self._look_at_nodes()
                    if outcome := self._next_outcome():
                        self._take(outcome)
                    self._take_stored()
                    self.place.lock_files.flush_if_due()
            except KeyboardInterrupt:
                try:
                    self._stop()
                except KeyboardInterrupt:  # a third signal: Prefect would wait for what still runs
                    self.place.executor.abandon()
                    raise
            finally:
                self.place.lock_files.flush()
        self.endings = {name: self.endings[name] for name in self.work.plan.planned}
        return self.endings

    def _next_outcome(self) -> Outcome | None:
        """Wait for a job to end, with DVC's lock released; only briefly, perhaps for None, while outputs are stored."""
        if not self.place.pool.given:
            wait([stored for _, stored in self._storing.values()], IDLE_S, FIRST_COMPLETED)
            return None
        if not self._storing and self.place.lock.is_wanted():
            self.place.lock_files.flush()
            self.place.lock.give_a_turn()
        with suppress(TimeoutError):
            limit_s = IDLE_S if self._storing else max(IDLE_S, self.place.lock_files.until_due_s())
            return self.place.executor.next_outcome(limit_s)
        if self._storing:
            return None
        self.place.lock_files.flush()
        with self.place.lock.released():
            while True:
                self._look_at_nodes()
                with suppress(TimeoutError):
                    return self.place.executor.next_outcome(LOOK_S)

    def _look_at_nodes(self) -> None:
        """Report submitted stages that wait because no node has what they request any more."""
        away = [name for name in self.place.pool.given if not self._jobs[name].stays]
        self._nodes.look({name: self.work.resources[name] for name in away})

    def _begin(self) -> None:
        stages = self.work.plan.planned.values()
        needs = {planned.name: planned.needs for planned in stages}
        self._dependencies = Dependencies(needs)
        for planned in stages:
            if planned.state is State.UP_TO_DATE:
                self.endings[planned.name] = Ending(planned.name, Result.UP_TO_DATE)
            elif planned.state is State.BLOCKED:
                self._end(Ending(planned.name, Result.BLOCKED, "; ".join(planned.reasons)))
        self._retries = Retries(self.work.resources)
        self._nodes = NodeWatch(self.place.executor.machines, self.told.progress.waits)
        self._ready = ReadyStages(
            needs,
            self.place.on_nodes or self.work.resources,
            self.work.durations,
            self.place.pool,
            in_order=self.work.in_order,
            first=self.work.wanted_first(needs),
            locality=self.place.workspace.locality,
        )
        before = predecessors((name for name in needs if name not in self.endings), self.work.groups)
        for name in self._dependencies.begin(before, self.endings):
            self._ready.add(name)

    def _start_ready(self) -> None:
        """Settle ready stages that need not run, and submit the others while the pool has resources for them."""
        if self.work.in_order and (self.place.pool.given or self._storing):
            return
        for name, share in self._ready.startable():
            self._start(name, share)
            if self.work.in_order and self.place.pool.given:
                return

    def _start(self, name: str, share: Allocation) -> None:
        """Settle a stage, or submit its job with its share of the pool."""
        if name in self.endings:
            return
        stage = self.work.plan.stages[name]
        while not self.place.lock.lock_paths(stage):
            wait([stored for _, stored in self._storing.values()])
            self.place.lock_files.flush()
            self.place.lock.give_a_turn()
        if name not in self._jobs:
            try:
                result, why = self.place.workspace.prepare(stage, self.work.plan.planned[name])
                if result in (Result.RESTORED, Result.DONE):
                    self._record(stage)
                elif result is None:
                    asked = self.work.resources[name]
                    asked = replace(asked, threads=share.threads or asked.threads)
                    self._jobs[name] = self.place.workspace.job(stage, asked)
            except Exception as error:  # whatever a stage throws, only that stage fails
                result, why = Result.FAILED, with_cause(error)
            if result is not None:
                self.place.lock.unlock_paths(name)
                self._end(Ending(name, result, why))
                return
            self.told.progress.began(name)
            self.told.events.began(stage)
        job = self._jobs[name]
        try:
            gpus = None if self.place.pool.gpus is None else share.gpus
            self.place.executor.submit(replace(job, gpus=gpus, machine=share.machine))
            self.place.pool.give(name, share)
            self.place.undeclared.began(name)
        except ExecutorLostError as error:
            self.place.lock.unlock_paths(name)
            self._end(Ending(name, Result.FAILED, str(error)))

    def _take(self, outcome: Outcome) -> None:
        self.place.undeclared.ended(outcome.name)
        outcome = replace(outcome, machine=self.place.pool.given[outcome.name].machine)
        self.place.pool.take_back(outcome.name)
        self.place.lock.unlock_paths(outcome.name)
        if not self.work.in_order:  # start others before this one's outputs are stored
            self._start_ready()
        self._finish(outcome)

    def _finish(self, outcome: Outcome) -> None:
        if not self.stopping and self._retries.take(outcome):
            self._ready.add(outcome.name)
            self.told.progress.again(outcome.name, masked(outcome.failure))
            return
        store = None
        if outcome.exit_code == 0 and not outcome.lost:
            try:
                store = self.place.workspace.storing(self.work.plan.stages[outcome.name], outcome)
            except Exception as error:
                outcome = replace(outcome, exit_code=1, why=with_cause(error))
        if store:
            self._storing[outcome.name] = outcome, self._threads.submit(store)
        else:
            self._close(outcome)

    def _take_stored(self) -> None:
        for outcome, stored in list(self._storing.values()):
            if stored.done():
                del self._storing[outcome.name]
                self._close(outcome, stored)

    def _close(self, outcome: Outcome, stored: Future[None] | None = None) -> None:
        """Record the result of a stage whose commands have ended."""
        del self._jobs[outcome.name]
        result, why = self._settle(outcome, stored)
        self._end(Ending(outcome.name, result, why, outcome))

    def _settle(self, outcome: Outcome, stored: Future[None] | None) -> tuple[Result, str]:
        """Store a successful stage's outputs; return its result, and the reason if it failed."""
        if outcome.exit_code != 0:
            # When the run is being stopped, a command that failed was most likely stopped by the same Ctrl-C.
            if self.stopping or (outcome.exit_code is None and not outcome.lost):
                return Result.STOPPED, "stopped before it ended"
            return Result.FAILED, f"{outcome.failure}{self._retries.times(outcome)}"
        stage = self.work.plan.stages[outcome.name]
        try:
            if stored:
                stored.result()
            entry, changed = self.place.workspace.keep(stage, outcome)
            self._record(stage, entry)
        except Exception as error:
            return Result.FAILED, with_cause(error)
        why = f"{', '.join(changed)} changed while it ran; dvc.lock has the hash from after the run, as with dvc repro"
        return (Result.RESTORED if outcome.restored else Result.DONE), why if changed else ""

    def _record(self, stage: Stage, entry: dict[str, Any] | None = None) -> None:
        if in_dvc_yaml(stage):
            self._entries[stage.addressing] = self.place.lock_files.record(stage, entry)
        else:
            self.place.lock_files.sync({})  # before the .dvc file names them
            stage.dump(update_pipeline=False)

    def _end(self, ending: Ending) -> None:
        """Record how a stage ended; unless it succeeded, block all stages downstream of it."""
        endings = [ending]
        for ended in endings:
            if ended.name not in self.endings:
                endings += self._note(replace(ended, why=masked(ended.why)))
        self.place.lock_files.flush_if_due()

    def _note(self, ending: Ending) -> list[Ending]:
        """Record how one stage ended; return the endings of the stages that this blocks."""
        self.endings[ending.name] = ending
        stage, entry = self.work.plan.stages[ending.name], self._entries.get(ending.name)
        if ending.result in (Result.DONE, Result.RESTORED, Result.FAILED):
            # First: what was said to be done has its line, whenever the run is killed.
            cached = ending.outcome.restored or ending.name in self.place.workspace.from_run_cache
            self.told.events.ended(stage, self.told.ledger.note(ending, entry, varying(stage), cached=cached), entry)
        elif ending.result is Result.STOPPED:
            self.told.events.stopped(stage)
        self.told.progress.ended(ending)
        if ending.result is Result.DONE:
            self._ready.note(ending.name, ending.outcome.seconds)
        if ending.result in _GOOD:
            self.told.on_ended({name for name, each in self.endings.items() if each.result in _GOOD}, ending.name)
        readers = self._dependencies.readers[ending.name]
        self._release(self._dependencies.follower(ending.name), ending.name)
        if ending.result is Result.FAILED and self.work.halts:
            return [Ending(name, Result.BLOCKED, f"{ending.name} failed before it") for name in self.work.plan.planned]
        if ending.result not in _GOOD:
            return [Ending(reader, Result.BLOCKED, f"{ending.name} {ending.result}") for reader in readers]
        self._release(readers, ending.name)
        return []

    def _release(self, names: Sequence[str], ended: str) -> None:
        """Let stages no longer wait for one that has ended."""
        for name in self._dependencies.release(names, ended):
            if name not in self.endings:
                self._ready.add(name)

    def _stop(self) -> None:
        """End the running stages and process their outcomes; mark all others as stopped."""
        self.stopping = True
        self.stop.hasten_by(self._kill)
        self.place.lock.take()  # the signal may have come while the run was waiting for it
        self.place.executor.abandon()
        with suppress(TimeoutError):  # a lost cluster sends no more outcomes
            while self.place.pool.given:
                outcome = self.place.executor.next_outcome(STOP_LIMIT_S)
                self.place.pool.take_back(outcome.name)
                self._finish(outcome)
        wait([stored for _, stored in self._storing.values()])
        self._take_stored()
        for name in self.place.pool.given:
            self._end(Ending(name, Result.STOPPED, "stopped before it ended"))
        for name in self.work.plan.planned:
            if name not in self.endings:
                self.endings[name] = Ending(name, Result.STOPPED, "the run was stopped")
        self.stop.hasten_by(None)

    def _kill(self) -> None:
        """Kill the stages that are being ended: the user does not want to wait for them."""
        self.place.executor.kill()
        self.told.progress.hastens()
