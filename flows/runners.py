"""Where stages run, by name."""

from typing import TYPE_CHECKING, Any

from merganser.errors import InputError

if TYPE_CHECKING:
    from prefect.task_runners import TaskRunner

RUNNERS = {
    "threads": "prefect.task_runners:ThreadPoolTaskRunner",
    "processes": "prefect.task_runners:ProcessPoolTaskRunner",
}


def check_runner(name: str) -> None:
    """Raise InputError unless there is a runner of this name."""
    if name not in RUNNERS:
        raise InputError(f"no runner {name!r}; there are {', '.join(RUNNERS)}")


def make_runner(name: str, workers: int) -> "TaskRunner[Any]":
    """Return the Prefect task runner of this name, for `workers` stages at a time."""
    from importlib import import_module

    module, kind = RUNNERS[name].split(":")
    return getattr(import_module(module), kind)(max_workers=workers)
