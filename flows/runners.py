"""Where stages run, by name."""

import signal
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from merganser.errors import InputError

if TYPE_CHECKING:
    from prefect.task_runners import TaskRunner


def _threads(workers: int) -> "TaskRunner[Any]":
    from prefect.task_runners import ThreadPoolTaskRunner

    return ThreadPoolTaskRunner(max_workers=workers)


def _processes(workers: int) -> "TaskRunner[Any]":
    from prefect.task_runners import ProcessPoolTaskRunner

    return ProcessPoolTaskRunner(max_workers=workers, initializer=_leave_interrupts_to_the_run)


def _leave_interrupts_to_the_run() -> None:
    # Ctrl-C goes to all processes of the terminal: what is to be stopped is for the run to say.
    signal.signal(signal.SIGINT, signal.SIG_IGN)


RUNNERS: dict[str, Callable[[int], "TaskRunner[Any]"]] = {"threads": _threads, "processes": _processes}


def make_runner(name: str, workers: int) -> "TaskRunner[Any]":
    """Return the Prefect task runner of this name, for `workers` stages at a time.

    Raises InputError if there is no such runner.
    """
    check_runner(name)
    return RUNNERS[name](workers)


def check_runner(name: str) -> None:
    """Raise InputError unless there is a runner of this name."""
    if name not in RUNNERS:
        raise InputError(f"no runner {name!r}; there are {', '.join(RUNNERS)}")
