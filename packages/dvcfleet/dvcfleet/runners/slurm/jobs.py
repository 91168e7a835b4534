"""In a run's Dask scheduler: give each stage a job of its own shape, and have as many jobs as stages wait for.

A job runs one stage at a time, and then the next one of its shape for which it has time left. Dask holds stages back,
since they ask for a resource that no worker has, until a job is free: otherwise it would hand them to busy workers.
"""

import asyncio
import pickle
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from distributed import SchedulerPlugin
from distributed.core import Status
from distributed.scheduler import Scheduler, TaskState, WorkerState

from dvcfleet.planning.resources import Resources
from dvcfleet.runners.slurm.commands import ALIVE, ENDING, JobState, Site, SlurmError, cancel, jobs_named
from dvcfleet.runners.slurm.walltime import needed_s, walltime_s
from dvcfleet.scheduling.durations import Durations

HELD = "a free job of SLURM's"  # the resource that no worker has
TICK_S = 0.5
ASK_S = 5.0  # between two questions about jobs
ASK_LOST_S = 1.0  # where one was lost
ENDING_S = 60.0  # for how long a job whose worker is gone may take to end
IDLE_S, IDLE_IF_WANTED_S = 30.0, 3.0  # after which a job without a stage ends; where other jobs wait to begin
SAY_S = 60.0  # between two lines about one thing
FAILED_STARTS = 3  # jobs in a row that ended before they had begun, after which waiting stages fail
_AT_ONCE = 16  # jobs submitted between two looks at the stages


class JobLostError(Exception):
    """A stage's job ended while the stage ran."""


class NoJobError(Exception):
    """No job begins."""


class Shape(NamedTuple):
    """What a job has: threads, bytes of memory (0: what the partition gives) and GPUs."""

    threads: int
    memory_bytes: int
    gpus: int


def request(name: str, resources: Resources) -> dict[str, Any]:
    """Return the annotation by which a stage asks for a job."""
    shape = [resources.threads, resources.memory_bytes, resources.gpus]
    return {"stage": name, "shape": shape, "timeout_s": resources.timeout_s}


@dataclass
class SlurmJob:
    """A job: its worker's address while there is one, else empty, and when it joined and last had a stage."""

    shape: Shape
    walltime_s: float
    number: str = ""
    worker: str = ""
    joined: float = 0.0
    at_work: float = 0.0
    has_begun: bool = False


class Jobs(SchedulerPlugin):
    """A run's jobs, all called `job_name`.

    `submit` submits one, given its worker's name, its shape and its seconds, and returns its number. `log_end` returns
    the last line that a job of a number wrote.
    """

    name = "dvcfleet-slurm"

    def __init__(
        self,
        scheduler: Scheduler,
        job_name: str,
        submit: Callable[[str, Shape, float], Awaitable[str]],
        log_end: Callable[[str], str],
        site: Site,
        unknown_s: float,
        durations: Durations,
        say: Callable[[str], object],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._scheduler, self._job_name, self._submit, self._log_end = scheduler, job_name, submit, log_end
        self._site, self._unknown_s, self._durations, self._say, self._clock = site, unknown_s, durations, say, clock
        self._jobs: dict[str, SlurmJob] = {}  # by their workers' names
        self._submitted = 0
        self._lost: dict[str, tuple[SlurmJob, float]] = {}  # with the time, by the keys of the tasks that they had
        self._began: dict[str, float] = {}  # by key, while a worker has it
        self._overran: dict[str, float] = {}  # by stage
        self._failed_starts: dict[Shape, int] = defaultdict(int)
        self._asked = 0.0
        self._said = {"waits": clock()}

    async def watch(self) -> None:
        """Have as many jobs as stages wait for, until cancelled."""
        while True:
            try:
                await self._look()
            except SlurmError as error:
                self._say_seldom("away", f"SLURM refuses a request, which is repeated: {error}")
            await asyncio.sleep(TICK_S)

    def update_graph(self, scheduler: Scheduler, **_: Any) -> None:
        """Give new stages jobs."""
        self._assign_soon()

    def transition(self, key: Any, start: str, finish: str, *_: Any, **__: Any) -> None:
        """Note how long a stage took, and give its job the next one."""
        if start != "processing":
            return
        began = self._began.pop(key, None)
        if began is not None and finish == "memory":
            self._durations.note(_asked(self._scheduler.tasks[key])["stage"], self._clock() - began)
        self._assign_soon()

    def add_worker(self, scheduler: Scheduler, worker: str) -> None:
        """Note that a job has begun."""
        job = self._jobs.get(str(scheduler.workers[worker].name))
        if job:
            job.worker, job.has_begun = worker, True
            job.joined = job.at_work = self._clock()
            self._failed_starts[job.shape] = 0
        self._assign_soon()

    def remove_worker(self, scheduler: Scheduler, worker: str, **_: Any) -> None:
        """Note that a job has ended, and which stage it had."""
        for job in [job for job in self._jobs.values() if job.worker == worker]:
            job.worker = ""
            had = [task.key for task in scheduler.unrunnable if worker in (task.worker_restrictions or ())]
            self._lost |= dict.fromkeys(map(str, had), (job, self._clock()))

    def _assign_soon(self) -> None:
        asyncio.get_running_loop().call_soon(self._assign)

    def _waiting(self) -> list[TaskState]:
        """List the stages that wait for a job, the first in order first."""
        held = [task for task in self._scheduler.unrunnable if "slurm" in (task.annotations or {})]
        return sorted((task for task in held if task.key not in self._lost), key=lambda task: task.priority or ())

    def _assign(self) -> None:
        """Give each free job a stage."""
        workers = self._workers().items()
        free = {name: each for name, each in workers if each.status == Status.running and not each.processing}
        for task in self._waiting() if free else ():
            name = next((name for name in free if self._suits(self._jobs[name], task)), None)
            if name is not None:
                task.worker_restrictions, task.resource_restrictions = {free.pop(name).address}, {}
                self._began[str(task.key)] = self._clock()
                self._scheduler.transitions({task.key: "processing"}, f"{self.name}-{time.time()}")

    def _workers(self) -> dict[str, WorkerState]:
        """Return the workers of the jobs that have begun, by name."""
        workers = self._scheduler.workers
        return {name: workers[job.worker] for name, job in self._jobs.items() if job.worker in workers}

    def _suits(self, job: SlurmJob, task: TaskState) -> bool:
        """Tell whether a job has the shape that a stage asks for, and enough time left."""
        need = self._needed_s(task)
        left = job.walltime_s - (self._clock() - job.joined)
        return job.shape == _shape(task) and left >= (job.walltime_s / 2 if need is None else need)

    def _needed_s(self, task: TaskState) -> float | None:
        asked = _asked(task)
        took, overran = self._durations.known(asked["stage"]), self._overran.get(asked["stage"], 0.0)
        need = needed_s(asked["timeout_s"], took, overran)
        return None if need is None else min(need, self._site.most_s)

    async def _look(self) -> None:
        """See what has become of the jobs, and begin and end some."""
        if all(job.worker for job in self._jobs.values()):
            self._said["waits"] = self._clock()
        is_due = self._clock() - self._asked >= (ASK_LOST_S if self._lost else ASK_S)
        if is_due and (self._lost or any(not job.worker for job in self._jobs.values())):
            states = await asyncio.to_thread(jobs_named, self._job_name)
            self._asked = self._clock()
            self._forget_ended(states)
            self._fail_lost(states)
            self._say_what_waits(states)
        self._assign()
        await self._scale()
        await self._end_idle()

    def _forget_ended(self, states: Mapping[str, JobState]) -> None:
        """Forget the jobs that have ended; of those that never began, fail the stages after some in a row."""
        for name, job in list(self._jobs.items()):
            if job.worker or not job.number or _state(states, job).state in ALIVE:
                continue
            del self._jobs[name]
            if not job.has_begun and _state(states, job).state != "CANCELLED":
                self._failed_starts[job.shape] += 1
                if self._failed_starts[job.shape] >= FAILED_STARTS:
                    end = f"{_state(states, job)}; its log ends with: {self._log_end(job.number)}"
                    self._fail_waiting(job.shape, f"{FAILED_STARTS} jobs of SLURM's in a row did not begin ({end})")

    def _fail_waiting(self, shape: Shape, why: str) -> None:
        self._failed_starts[shape] = 0
        for task in self._waiting():
            if _shape(task) == shape:
                self._fail(task, NoJobError(why))

    def _fail_lost(self, states: Mapping[str, JobState]) -> None:
        """Let the stages fail whose jobs were lost: the run starts them again, and says so."""
        for key, (job, since) in list(self._lost.items()):
            state, task = _state(states, job), self._scheduler.tasks.get(key)
            if state.state in ENDING and self._clock() - since < ENDING_S:
                continue
            del self._lost[key]
            if task is None or task.state != "no-worker":
                continue
            if state.state == "TIMEOUT":
                self._overran[_asked(task)["stage"]] = job.walltime_s
            again = "is queued again" if state.state in ALIVE else "ended"
            # This state alone does not say why: SLURM may have killed it for its memory.
            end = f"; its log ends with: {self._log_end(job.number)}" if state.state == "FAILED" else ""
            self._fail(task, JobLostError(f"SLURM's job {job.number} {again}: {state}{end}"))

    def _fail(self, task: TaskState, error: Exception) -> None:
        stimulus = f"{self.name}-{time.time()}"
        more = self._scheduler.transition(
            task.key, "erred", exception=pickle.dumps(error), cause=task.key, stimulus_id=stimulus
        )
        self._scheduler.transitions(more, stimulus)

    def _say_what_waits(self, states: Mapping[str, JobState]) -> None:
        """Say for what jobs wait that have waited for a while."""
        waiting = [_state(states, job) for job in self._jobs.values() if not job.has_begun]
        reasons = sorted({each.reason for each in waiting if each.state == "PENDING" and each.reason != "None"})
        if reasons:
            count = sum(each.state == "PENDING" for each in waiting)
            self._say_seldom("waits", f"jobs of this run that wait in SLURM: {count} ({', '.join(reasons)})")
        else:
            self._said["waits"] = self._clock()

    def _say_seldom(self, what: str, line: str) -> None:
        if self._clock() - self._said.get(what, -SAY_S) >= SAY_S:
            self._said[what] = self._clock()
            self._say(line)

    async def _scale(self) -> None:
        """Submit jobs for the stages for which none is on its way, and cancel those for which no stage waits."""
        by_shape: dict[Shape, list[TaskState]] = defaultdict(list)
        for task in self._waiting():
            by_shape[_shape(task)].append(task)
        coming: dict[Shape, list[str]] = defaultdict(list)
        workers = self._workers()
        joining = [name for name, each in workers.items() if each.status != Status.running and not each.processing]
        # One that had begun and that SLURM has queued again may not begin for minutes.
        for name in [*joining, *(name for name, job in self._jobs.items() if not job.has_begun)]:
            coming[self._jobs[name].shape].append(name)
        lacking = [task for shape, tasks in by_shape.items() for task in tasks[len(coming[shape]) :]]
        for task in lacking[:_AT_ONCE]:
            await self._begin(_shape(task), self._needed_s(task))
        surplus = [name for shape, names in coming.items() for name in names[len(by_shape[shape]) :]]
        surplus = [name for name in surplus if self._jobs[name].number and not self._jobs[name].has_begun]
        if surplus:
            await asyncio.to_thread(cancel, self._job_name, [self._jobs[name].number for name in surplus])
            for name in surplus:
                del self._jobs[name]

    async def _begin(self, shape: Shape, need_s: float | None) -> None:
        """Submit a job; nothing is left of it if SLURM does not take it."""
        self._submitted += 1
        name = f"{self._job_name}-{self._submitted}"
        job = self._jobs[name] = SlurmJob(shape, walltime_s(need_s, self._unknown_s, self._site.most_s))
        try:
            job.number = await self._submit(name, shape, job.walltime_s)
        except BaseException:
            del self._jobs[name]
            raise

    async def _end_idle(self) -> None:
        """End the jobs that have had no stage for a while, sooner where others wait for what they have."""
        idle = []
        limit_s = IDLE_S if all(job.has_begun for job in self._jobs.values()) else IDLE_IF_WANTED_S
        for name, worker in self._workers().items():
            if worker.processing:
                self._jobs[name].at_work = self._clock()
            elif self._clock() - self._jobs[name].at_work >= limit_s:
                idle.append(name)
        await self._retire([self._jobs.pop(name).worker for name in idle])

    async def end(self) -> None:
        """Let all workers end, and with them their jobs; cancel the jobs that have not begun."""
        await self._retire([worker.address for worker in self._workers().values()])
        self._jobs.clear()
        await asyncio.to_thread(cancel, self._job_name, states=("PENDING",))

    async def _retire(self, workers: Collection[str]) -> None:
        if workers:
            stimulus = f"{self.name}-{time.time()}"
            await self._scheduler.retire_workers(list(workers), close_workers=True, stimulus_id=stimulus)


def _asked(task: TaskState) -> dict[str, Any]:
    asked: dict[str, Any] = (task.annotations or {})["slurm"]
    return asked


def _shape(task: TaskState) -> Shape:
    return Shape(*_asked(task)["shape"])


def _state(states: Mapping[str, JobState], job: SlurmJob) -> JobState:
    """Return a job's state; SLURM forgets a job some minutes after its end."""
    return states.get(job.number, JobState("ended", ""))
