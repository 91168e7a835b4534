"""Runners by name: threads or processes of this machine, which start the commands, or a cluster."""

import signal
from collections.abc import Callable, Mapping
from concurrent.futures import BrokenExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from dvcfleet.planning.resources import Resources
from dvcfleet.scheduling.resource_pool import ResourcePool, local_pool

if TYPE_CHECKING:
    from prefect.futures import PrefectFuture
    from prefect.task_runners import TaskRunner

CLUSTERS = ("ray", "dask")
RUNNERS = ("threads", "processes", *CLUSTERS)


class Runner(Protocol):
    """One of Prefect's task runners, with what Prefect's interface lacks.

    `remote`: its workers start their own fork servers; other runners use those of this machine.
    """

    task_runner: "TaskRunner[Any]"
    remote: bool

    def pool(self, resources: Mapping[str, Resources]) -> ResourcePool:
        """Return the resources that stages may use; raise UserError for a stage that requests more than that."""

    def requesting(self, resources: Resources, machine: str) -> AbstractContextManager[Any]:
        """Request these resources of the cluster, if possible on this machine, for tasks submitted within the block."""

    def end(self, future: "PrefectFuture[Any]") -> None:
        """End a task run on a remote worker, if it still runs."""

    def is_loss(self, error: Exception) -> bool:
        """Tell whether a task run failed because its worker was lost."""


@dataclass
class Local:
    """A runner on this machine: this process counts resources, and its fork servers start the commands."""

    task_runner: "TaskRunner[Any]"
    threads: int
    asks: Callable[[Resources], AbstractContextManager[Any]] = lambda resources: nullcontext()
    losses: tuple[type[BaseException], ...] = (BrokenExecutor,)
    remote = False

    def pool(self, resources: Mapping[str, Resources]) -> ResourcePool:
        """Return this machine's pool."""
        pool = local_pool(self.threads, any_gpus=any(each.gpus for each in resources.values()))
        for name, each in resources.items():
            pool.refuse_too_much(name, each)
        return pool

    def requesting(self, resources: Resources, machine: str) -> AbstractContextManager[Any]:
        """Request resources of a cluster on this machine; do nothing for threads and processes."""
        return self.asks(resources)

    def end(self, future: "PrefectFuture[Any]") -> None:
        """Do nothing: the fork servers end what they started."""

    def is_loss(self, error: Exception) -> bool:
        """Tell whether the pool of the task run broke, or its worker in a cluster was lost."""
        return isinstance(error, self.losses)


def ignore_interrupts() -> None:
    """Ignore Ctrl-C, which goes to all processes of the terminal: the run decides what to end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
