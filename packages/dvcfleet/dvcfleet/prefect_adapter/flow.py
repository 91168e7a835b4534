"""The Prefect side of a run: a flow run whose task runs are the stages. Imports Prefect, so import this late."""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from contextvars import ContextVar
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

import httpx
from prefect import flow, get_run_logger, task
from prefect.artifacts import create_table_artifact
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import FlowRunFilter, TaskRunFilter
from prefect.client.schemas.objects import StateType
from prefect.context import FlowRunContext, get_run_context
from prefect.exceptions import FailedRun, PrefectException
from prefect.futures import PrefectFuture
from prefect.runtime import flow_run
from prefect.states import Completed, Crashed, Failed, State
from prefect.task_runners import ProcessPoolTaskRunner, TaskRunner, ThreadPoolTaskRunner
from prefect.utilities.annotations import quote

from dvcfleet.errors import ExecutorLostError
from dvcfleet.messages import Ending, Job, Outcome, Result
from dvcfleet.prefect_adapter.internals import (
    count_lost_logs,
    drop_unsent,
    flush,
    heartbeats_left_to_end,
    settings_sent_once,
    share_tls_context,
)
from dvcfleet.record.ledger import begin
from dvcfleet.runners import Runner
from dvcfleet.scheduling.resource_pool import Machine
from dvcfleet.terminal.machine_limits import usable_cpus
from dvcfleet.terminal.secrets import masked
from dvcfleet.worker.fork_client import ForkServers
from dvcfleet.worker.jobs import run_job
from dvcfleet.worker.output import LOGS, log_path
from dvcfleet.workspaces.nodes.node import run_on_node

LOG_LIMIT = 1 << 20  # characters of a stage's output that Prefect gets
FETCH_LIMIT_S = 1.0  # of an outcome from its node, during which no other is taken
# Not an argument or a closure: a process pool copies the flow, and the repository cannot be copied.
_CURRENT: ContextVar[Callable[[], dict[str, Ending]]] = ContextVar("current")
BAD = (Result.FAILED, Result.BLOCKED, Result.STOPPED)


class StageFailedError(Exception):
    """A stage's command failed; `outcome` tells how."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(outcome)
        self.outcome = outcome

    def __str__(self) -> str:
        return f"{self.outcome.name}: exit code {self.outcome.exit_code}"


def _is_kept(record: logging.LogRecord) -> bool:
    """Tell whether to keep a log line of Prefect's: not that of each task run's end, which its state shows."""
    return record.levelno > logging.INFO or not record.getMessage().startswith("Finished in state")


logging.getLogger("prefect.task_runs").addFilter(_is_kept)
share_tls_context()
count_lost_logs()


class StageLog:
    """A stage's log in Prefect: the first `LOG_LIMIT` characters of its output, and its last lines; `file` has all."""

    def __init__(self, info: Callable[[str], object], file: str) -> None:
        self._info, self._file, self._left = info, file, LOG_LIMIT

    def write(self, text: str) -> None:
        """Log a block of lines."""
        if self._left > 0:
            self._info(text[: self._left].removesuffix("\n"))
        self._left -= len(text)

    def close(self, tail: Sequence[str]) -> None:
        """Say what is left out, and log the last lines."""
        if self._left < 0:
            self._info(f"... {-self._left} characters more: all are in {self._file} where it ran; the last lines are:")
            self._info("\n".join(tail))


@task(name="stage", task_run_name="{job.name}", persist_result=False)
def stage_run(job: Job) -> Outcome:
    """Run a stage's commands; their output becomes log lines, each a block of its lines."""
    start = begin(elsewhere=job.fork_servers is None)
    run_it = run_on_node if job.node else run_job
    log = StageLog(get_run_logger().info, f"{LOGS}/{log_path(Path(), job.name).name}")
    outcome = replace(run_it(job, log.write), start=start)
    log.close(outcome.tail)
    if outcome.exit_code != 0:
        raise StageFailedError(outcome)
    return outcome


class PrefectExecutor:
    """Runs the jobs of a run as task runs; `fork_servers` start their processes unless the runner is remote."""

    def __init__(self, runner: Runner, fork_servers: ForkServers, run: str) -> None:
        self._runner, self._fork_servers, self._run = runner, fork_servers, run
        self._ended: SimpleQueue[tuple[PrefectFuture[Any], str, TaskRunner[Any]]] = SimpleQueue()
        self._at_work: dict[str, PrefectFuture[Any]] = {}
        self._renewed: TaskRunner[Any] | None = None
        self._stack = ExitStack()

    def submit(self, job: Job) -> None:
        """Submit a job; `next_outcome` returns its outcome. Raises ExecutorLostError if the whole cluster was lost."""
        away = self._runner.remote and not job.stays
        fork_servers = None if away else self._fork_servers.addresses()
        job = replace(job, fork_servers=fork_servers, run=self._run)
        task_runner = self._home if job.stays else self._renewed or _flow_task_runner()
        try:
            with self._runner.requesting(job):
                future = task_runner.submit(stage_run, {"job": _as_it_is(job, task_runner)})
        except Exception as error:
            if not isinstance(error, self._runner.losses):
                raise
            if self._renew(task_runner):
                return self.submit(job)
            raise ExecutorLostError(masked(f"no worker is left to run it ({type(error).__name__}: {error})")) from error
        if away:
            self._at_work[job.name] = future
        self._watch(future, job.name, task_runner)

    def next_outcome(self, limit_s: float) -> Outcome:
        """Wait for a job to end and return its outcome; raise TimeoutError if none ends in time.

        An outcome may be lost with its node before it is fetched. The cluster then runs the job again, as it does one
        whose node is lost earlier.
        """
        deadline = time.monotonic() + limit_s
        while (left := deadline - time.monotonic()) > 0:
            try:
                future, name, task_runner = self._ended.get(timeout=left)
            except Empty:
                break
            try:
                value = _fetched(future)
            except TimeoutError:
                self._watch(future, name, task_runner)
                continue
            self._at_work.pop(name, None)
            return self._outcome_of(value, name, task_runner)
        raise TimeoutError

    def machines(self) -> Sequence[Machine] | None:
        """Return the cluster's machines as they are now; None if none are counted, or if it does not answer."""
        try:
            return self._runner.machines()
        except Exception:  # the stages' own outcomes say that a cluster is lost
            return None

    def abandon(self) -> None:
        """End all running commands."""
        self._fork_servers.stop()
        for future in self._at_work.values():
            self._runner.end(future)

    def kill(self) -> None:
        """Kill the commands on this machine, also while they are being ended; call it from a handler of a signal."""
        self._fork_servers.hasten()

    @cached_property
    def _home(self) -> TaskRunner[Any]:
        """The task runner for jobs that stay on the run's machine while others go to nodes."""
        threads: TaskRunner[Any] = ThreadPoolTaskRunner(max_workers=usable_cpus())
        self._stack.enter_context(threads)
        return threads

    def __enter__(self) -> "PrefectExecutor":
        self._stack.enter_context(settings_sent_once())
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _outcome_of(self, value: object, name: str, task_runner: TaskRunner[Any]) -> Outcome:
        if isinstance(value, Outcome):
            return value
        if isinstance(value, StageFailedError):
            return value.outcome
        why = masked(f"{type(value).__name__}: {value}")
        if isinstance(value, self._runner.losses):
            self._renew(task_runner)
            return Outcome(name, None, lost=True, why=f"its worker was lost ({why})")
        return Outcome(name, 1, tail=(why,))

    def _watch(self, future: PrefectFuture[Any], name: str, task_runner: TaskRunner[Any]) -> None:
        # The callback's argument differs between runners.
        future.add_done_callback(lambda _: self._ended.put((future, name, task_runner)))

    def _renew(self, broken: TaskRunner[Any]) -> bool:
        """Replace a pool that is broken for good, as a process pool is that has lost a process."""
        if broken is (self._renewed or _flow_task_runner()) and isinstance(broken, ProcessPoolTaskRunner):
            self._renewed = self._stack.enter_context(broken.duplicate())
            return True
        return False


def _fetched(future: PrefectFuture[Any]) -> object:
    """Return what an ended task run returned or raised; raise TimeoutError if its node does not give it."""
    since = time.monotonic()
    try:
        value: object = future.result(FETCH_LIMIT_S, raise_on_failure=False)
    except Exception as error:  # a broken pool must not block the loop
        if isinstance(error, TimeoutError) and time.monotonic() - since >= FETCH_LIMIT_S:
            raise
        return error
    return value


def _as_it_is(job: Job, task_runner: TaskRunner[Any]) -> Any:
    # Prefect need not search the job for futures; Ray's and Dask's runners do not support this marker.
    return quote(job) if isinstance(task_runner, ThreadPoolTaskRunner | ProcessPoolTaskRunner) else job


def _flow_task_runner() -> TaskRunner[Any]:
    context = get_run_context()
    assert isinstance(context, FlowRunContext)
    return context.task_runner


def run_flow(
    name: str, runner: TaskRunner[Any], execute: Callable[[], dict[str, Ending]], parameters: Mapping[str, Any]
) -> bool:
    """Run `execute` as a flow run called `name` with these parameters, and save a table of how the stages ended.

    Returns whether Prefect's server received all of it; the stages do not depend on that. Raises the error that stopped
    the flow itself, so that an aborted run does not count as a finished one.
    """
    is_received, ended = False, list[bool]()

    def execute_once() -> dict[str, Ending]:
        endings = execute()
        ended.append(True)
        return endings

    token = _CURRENT.set(execute_once)
    try:
        begun = repository_run.with_options(flow_run_name=name, task_runner=runner)
        with heartbeats_left_to_end():
            state = begun(dict(parameters), return_state=True)
        is_received = flush()
        error = state.result(raise_on_failure=False)
    except (httpx.HTTPError, PrefectException) as lost:
        error = lost
    finally:
        _CURRENT.reset(token)
    if not isinstance(error, Exception) or isinstance(error, FailedRun):  # only says that stages failed
        return is_received
    if ended and isinstance(error, httpx.HTTPError | PrefectException):
        drop_unsent()
        return False
    raise error


@flow(name="dvc repository", validate_parameters=False, persist_result=False)
def repository_run(run: dict[str, Any]) -> State[Any]:
    """Run the stages of the current run; each is a task run. Prefect shows what `run` says of it."""
    if run.get("continues"):
        _mark_killed(run["repository"])
    return _run_current()


def _run_current() -> State[Any]:
    """Run the stages; apart from the flow, which is copied with all that its own code names."""
    endings = _CURRENT.get()().values()
    rows = [
        {
            "stage": ending.name,
            "result": ending.result.value,
            "seconds": round(ending.outcome.seconds, 2),
            "peak memory (MiB)": ending.outcome.peak_rss_bytes >> 20,
            "why": ending.why,
        }
        for ending in endings
    ]
    create_table_artifact(rows, key="stages", description="How the stages ended")
    bad = sum(ending.result in BAD for ending in endings)
    return Failed(message=f"{bad} stages did not end well") if bad else Completed(message="all stages ended well")


def _mark_killed(repository: str) -> None:
    """Mark as crashed what still counts as running of the earlier runs that this run continues.

    Their processes are gone: one run at a time writes to a repository. Does nothing if the server does not answer.
    """
    crashed: State[Any] = Crashed(message="killed; a later run of the same name continues it")
    with suppress(httpx.HTTPError, PrefectException), get_client(sync_client=True) as client:
        running = {"state": {"type": {"any_": [StateType.RUNNING]}}}
        named = FlowRunFilter.model_validate({"name": {"any_": [flow_run.name]}} | running)
        for killed in client.read_flow_runs(flow_run_filter=named):
            of_killed = killed.parameters.get("run", {}).get("repository") == repository
            if of_killed and str(killed.id) != flow_run.id:
                of_it = FlowRunFilter.model_validate({"id": {"any_": [killed.id]}})
                stages = TaskRunFilter.model_validate(running)
                for stage in client.read_task_runs(flow_run_filter=of_it, task_run_filter=stages):
                    client.set_task_run_state(stage.id, crashed, force=True)
                client.set_flow_run_state(killed.id, crashed, force=True)


def flow_run_id() -> str | None:
    """Return the id of the current flow run; None outside of one."""
    return flow_run.id
