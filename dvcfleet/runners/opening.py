"""Open a runner by name: threads or processes of this machine, or a cluster."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from dvcfleet.runners import clusters
from dvcfleet.runners.task_runners import CLUSTERS, Local, Runner, ignore_interrupts

if TYPE_CHECKING:
    from prefect.task_runners import TaskRunner


@contextmanager
def open_runner(name: str, workers: int | None = None, address: str | None = None) -> Iterator[Runner]:
    """Open the runner of this name for `workers` threads at a time, connected to the cluster at `address` if given.

    Without an address, a cluster is started on loopback for the time of the block. `workers` defaults to the number of
    CPUs. Raises UserError if no cluster answers at the address.
    """
    threads = workers or os.cpu_count() or 1
    if name in CLUSTERS:
        with clusters.open_cluster(name, threads, workers, address) as cluster:
            yield cluster
    else:
        yield Local(_POOLS[name](threads), threads)


def _threads(workers: int) -> "TaskRunner[Any]":
    from prefect.task_runners import ThreadPoolTaskRunner

    return ThreadPoolTaskRunner(max_workers=workers)


def _processes(workers: int) -> "TaskRunner[Any]":
    from prefect.task_runners import ProcessPoolTaskRunner

    return ProcessPoolTaskRunner(max_workers=workers, initializer=ignore_interrupts)


_POOLS: dict[str, Callable[[int], "TaskRunner[Any]"]] = {"threads": _threads, "processes": _processes}
