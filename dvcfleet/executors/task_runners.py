"""Where stages run, by name: in threads or processes that watch this machine's processes, or on a cluster."""

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
    """One of Prefect's task runners, and what it needs to be told and asked beyond Prefect.

    `remote` means that its workers are not children of this machine's hosts but start hosts of their own.
    """

    task_runner: "TaskRunner[Any]"
    remote: bool

    def pool(self, resources: Mapping[str, Resources]) -> ResourcePool:
        """Return what there is for stages; raises UserError for a stage that asks for more than that."""

    def asking(self, resources: Resources) -> AbstractContextManager[Any]:
        """Have what is submitted within the block get what it needs."""

    def end(self, future: "PrefectFuture[Any]") -> None:
        """End a task run on a worker elsewhere, if it still goes on."""

    def is_loss(self, error: Exception) -> bool:
        """Tell whether a task run ended because its worker went away."""


@dataclass
class Local:
    """A runner on this machine: this process counts what there is, and its hosts fork the stages' processes."""

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

    def asking(self, resources: Resources) -> AbstractContextManager[Any]:
        """Tell a cluster on this machine; the pool was counted already."""
        return self.asks(resources)

    def end(self, future: "PrefectFuture[Any]") -> None:
        """Do nothing: the hosts end what they started."""

    def is_loss(self, error: Exception) -> bool:
        """Tell whether the pool that did the task run broke, or its worker in a cluster went away."""
        return isinstance(error, self.losses)


def leave_interrupts_to_the_run() -> None:
    """Ignore Ctrl-C, which goes to all processes of the terminal: what is to be stopped is for the run to say."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
