"""The Prefect side of a run: a flow run whose task runs are the stages. Imports Prefect, so import it late."""

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from queue import SimpleQueue
from typing import Any

import httpx
from prefect import flow, get_run_logger, task
from prefect.artifacts import create_table_artifact
from prefect.client.schemas.objects import TaskRun
from prefect.exceptions import FailedRun, PrefectException
from prefect.futures import PrefectFuture
from prefect.states import Completed, Failed, State
from prefect.task_runners import TaskRunner
from prefect.tasks import Task
from prefect.utilities.annotations import quote

from flows.engine import Ending, Result
from flows.worker import Job, Outcome, run_job

Rows = Callable[[Iterable[Ending]], list[dict[str, Any]]]
BAD = (Result.FAILED, Result.BLOCKED, Result.STOPPED)


class StageFailedError(Exception):
    """A stage's command ended badly; `outcome` tells how."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(outcome)
        self.outcome = outcome

    def __str__(self) -> str:
        return f"{self.outcome.name}: exit code {self.outcome.exit_code}"


def _worth_another_try(_task: Task[..., Any], _run: TaskRun, state: State[Any]) -> bool:
    error = state.result(raise_on_failure=False)
    # 2 is the user's mistake, and None means that the run itself was stopped.
    return not (isinstance(error, StageFailedError) and error.outcome.exit_code in (2, None))


class _OwnWords(logging.Filter):
    """Leaves out Prefect's line about each task run's end: its state says so, and a line costs as much as a stage's."""

    def filter(self, record: logging.LogRecord) -> bool:
        return record.levelno > logging.INFO or not record.getMessage().startswith("Finished in state")


logging.getLogger("prefect.task_runs").addFilter(_OwnWords())


@task(name="stage", task_run_name="{job.name}", persist_result=False, retry_condition_fn=_worth_another_try)
def stage_run(job: Job) -> Outcome:
    """Run a stage's commands, each line they print being a log line."""
    outcome = run_job(job, get_run_logger().info)
    if outcome.exit_code != 0:
        raise StageFailedError(outcome)
    return outcome


def submitter(outcomes: "SimpleQueue[Outcome]") -> Callable[[Job], None]:
    """Return what submits a job to the flow run's task runner and later puts the outcome on the queue."""

    with_retries = cache(lambda retries: stage_run.with_options(retries=retries))

    def submit(job: Job) -> None:
        future = with_retries(job.retries).submit(*_as_it_is(job))
        future.add_done_callback(lambda future: outcomes.put(_outcome(future, job)))

    return submit


def _as_it_is(job: Job) -> tuple[Any, ...]:
    # Prefect need not look for futures in it.
    return (quote(job),)


def _outcome(future: PrefectFuture[Any], job: Job) -> Outcome:
    try:
        future.wait()
        value = future.state.result(raise_on_failure=False)
    except Exception as error:  # a broken pool must not leave the loop waiting for this stage
        value = error
    if isinstance(value, Outcome):
        return value
    if isinstance(value, StageFailedError):
        return value.outcome
    return Outcome(job.name, 1, 0.0, 0, (f"{type(value).__name__}: {value}",))


def run_flow(name: str, runner: TaskRunner[Any], execute: Callable[[], dict[str, Ending]], rows: Rows) -> bool:
    """Run `execute` as a flow run called `name`, and leave a table of how the stages ended.

    Returns whether Prefect's server took it all: what became of the stages does not hang on that. Raises what stopped
    the flow itself: a run that broke off must not pass for one that ended.
    """
    with _current(execute, rows) as ended:
        try:
            state = comparison.with_options(flow_run_name=name, task_runner=runner)(return_state=True)
            _flush()
            error = state.result(raise_on_failure=False)
        except (httpx.HTTPError, PrefectException) as lost:
            error = lost
    if not isinstance(error, Exception) or isinstance(error, FailedRun):  # that one is our own verdict on the stages
        return True
    if ended and isinstance(error, httpx.HTTPError | PrefectException):
        return False
    raise error


@flow(name="comparison", validate_parameters=False, persist_result=False)
def comparison() -> State[Any]:
    """Run the stages of the current comparison; each is a task run."""
    return _run_current()


# Not an argument or a closure: a process pool gets a copy of the flow, and the repository is not for copying.
_CURRENT: ContextVar[tuple[Callable[[], dict[str, Ending]], Rows]] = ContextVar("current")


@contextmanager
def _current(execute: Callable[[], dict[str, Ending]], rows: Rows) -> Iterator[list[bool]]:
    ended: list[bool] = []

    def execute_once() -> dict[str, Ending]:
        endings = execute()
        ended.append(True)
        return endings

    token = _CURRENT.set((execute_once, rows))
    try:
        yield ended
    finally:
        _CURRENT.reset(token)


def _run_current() -> State[Any]:
    execute, rows = _CURRENT.get()
    endings = execute().values()
    create_table_artifact(rows(endings), key="stages", description="How the stages ended")
    return _verdict(endings)


def _verdict(endings: Iterable[Ending]) -> State[Any]:
    bad = [ending.name for ending in endings if ending.result in BAD]
    return Failed(message=f"{len(bad)} stages did not end well") if bad else Completed(message="all stages ended well")


def _flush() -> None:
    """Wait until the server has all logs and events, so that it can be stopped."""
    from prefect.events.worker import EventsWorker
    from prefect.logging.handlers import APILogWorker

    for service in (APILogWorker, EventsWorker):
        service.drain_all(timeout=30, at_exit=False)
