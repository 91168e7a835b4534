"""Where stages run, by name: in threads or processes that watch this machine's processes, or on a cluster."""

import os
import signal
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import BrokenExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from flows.needs import Needs
from flows.room import Room, room_here

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

    def room(self, needs: Mapping[str, Needs]) -> Room:
        """Return what there is for stages; raises InputError for a stage that asks for more than that."""

    def asking(self, needs: Needs) -> AbstractContextManager[Any]:
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
    asks: Callable[[Needs], AbstractContextManager[Any]] = lambda needs: nullcontext()
    losses: tuple[type[BaseException], ...] = (BrokenExecutor,)
    remote = False

    def room(self, needs: Mapping[str, Needs]) -> Room:
        """Return this machine's room."""
        room = room_here(self.threads, any_gpus=any(each.gpus for each in needs.values()))
        for name, each in needs.items():
            room.refuse_too_much(name, each)
        return room

    def asking(self, needs: Needs) -> AbstractContextManager[Any]:
        """Tell a cluster on this machine; the room was counted already."""
        return self.asks(needs)

    def end(self, future: "PrefectFuture[Any]") -> None:
        """Do nothing: the hosts end what they started."""

    def is_loss(self, error: Exception) -> bool:
        """Tell whether the pool that did the task run broke, or its worker in a cluster went away."""
        return isinstance(error, self.losses)


@contextmanager
def open_runner(name: str, workers: int | None = None, address: str | None = None) -> Iterator[Runner]:
    """Give the runner of this name for `workers` threads at a time, connected to the cluster at `address` if given.

    Without an address a cluster is started on this machine's loopback, and ended. Without `workers` there are as many
    as CPUs. Raises InputError where no cluster answers at the address.
    """
    threads = workers or os.cpu_count() or 1
    if name in CLUSTERS:
        from flows import clusters

        with clusters.open_cluster(name, threads, workers, address) as cluster:
            yield cluster
    else:
        yield Local(_POOLS[name](threads), threads)


def _threads(workers: int) -> "TaskRunner[Any]":
    from prefect.task_runners import ThreadPoolTaskRunner

    return ThreadPoolTaskRunner(max_workers=workers)


def _processes(workers: int) -> "TaskRunner[Any]":
    from prefect.task_runners import ProcessPoolTaskRunner

    return ProcessPoolTaskRunner(max_workers=workers, initializer=leave_interrupts_to_the_run)


def leave_interrupts_to_the_run() -> None:
    """Ignore Ctrl-C, which goes to all processes of the terminal: what is to be stopped is for the run to say."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


_POOLS: dict[str, Callable[[int], "TaskRunner[Any]"]] = {"threads": _threads, "processes": _processes}
