"""Dask as a runner, through prefect-dask."""

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import CancelledError
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import dask
from distributed import Client, KilledWorker, WorkerPlugin
from distributed.client import ClosedClientError
from distributed.comm import CommClosedError
from distributed.core import Status
from distributed.worker import Worker
from prefect.futures import PrefectFuture
from prefect.task_runners import TaskRunner
from prefect_dask import DaskTaskRunner

from dvcfleet.errors import UserError
from dvcfleet.messages import Job
from dvcfleet.planning.resources import Resources
from dvcfleet.process_settings import set_own
from dvcfleet.runners import LocalRunner
from dvcfleet.runners.dask.frames import collect_no_garbage_while_listing_frames
from dvcfleet.runners.dask.scheduler import FreeTasks
from dvcfleet.scheduling.resource_pool import Capacity, Machine, ResourcePool, cluster_pool, refuse_wrong_gpus
from dvcfleet.terminal.machine_limits import usable_memory
from dvcfleet.worker.gpus import gpus_here
from dvcfleet.worker.jobs import keys_at_work

_END_LIMIT_S = 30.0
_ANSWER_LIMIT_S = 30.0  # of the scheduler, when it is asked which workers there are
LOSSES: tuple[type[BaseException], ...] = (KilledWorker, CommClosedError, CancelledError, ClosedClientError)


class OpenDaskTaskRunner(DaskTaskRunner):
    """Prefect's task runner, which takes no task while its client closes: it would never be sent, nor end."""

    def submit(self, *args: Any, **options: Any) -> Any:
        """Submit a task run; raises ClosedClientError if the scheduler is lost for good."""
        future = super().submit(*args, **options)
        if self.client.status in ("closing", "closed"):  # what was submitted before that, it cancels
            raise ClosedClientError(f"its client is {self.client.status}")
        return future


class DeclaredResources(WorkerPlugin):
    """A plugin by which a Dask cluster's workers, later ones too, declare their resources, after `--resources`."""

    name = "dvcfleet"

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = dict(environment)

    async def setup(self, worker: Worker) -> None:
        """Declare the worker's threads, memory and GPUs as its resources; prevent a deadlock of Python's."""
        collect_no_garbage_while_listing_frames()
        for name, value in self._environment.items():
            set_own(name, value)
        memory = worker.memory_manager.memory_limit or usable_memory()
        has = {"threads": worker.state.nthreads, "memory": memory, "GPU": len(gpus_here())}
        more = {name: amount for name, amount in has.items() if name not in worker.state.total_resources}
        if more:
            # Dask reassigns waiting tasks when a worker resumes, but not when it declares resources.
            worker.status = Status.paused
            await worker.set_resources(**more)
            worker.status = Status.running


@dataclass
class DaskCluster:
    """A Dask cluster at an address, which counts its workers' resources."""

    task_runner: TaskRunner[Any]
    client: Client
    address: str
    workers: int | None
    remote = True
    losses = LOSSES
    _ended: set[str] = field(default_factory=set)

    def pool(self, resources: Mapping[str, Resources]) -> ResourcePool:
        """Return the cluster's pool."""
        if any(each.gpus for each in resources.values()):
            declared = {at: count for at, has in self._workers().items() if (count := has["resources"].get("GPU"))}
            refuse_wrong_gpus(self.client.run(gpus_here, workers=[*declared]) if declared else {}, declared)
        return cluster_pool(f"the Dask cluster at {self.address}", self.machines() or (), self.workers, resources)

    def machines(self) -> Sequence[Machine] | None:
        """Return the workers that have declared what they have: one that has just joined may not have yet."""
        return [
            Machine(at, str(urlsplit(at).hostname), Capacity(has["threads"], has["memory"], has["GPU"]))
            for at, has in ((at, worker["resources"]) for at, worker in self._workers().items())
            if has.keys() >= {"threads", "memory", "GPU"}
        ]

    def requesting(self, job: Job) -> AbstractContextManager[Any]:
        """Request a job's resources of a worker, if it is still there of the one chosen for it."""
        resources = job.resources
        wanted = {"threads": resources.threads, "memory": resources.memory_bytes, "GPU": resources.gpus}
        chosen = {"workers": [job.machine]} if job.machine else {}
        return dask.annotate(resources={name: amount for name, amount in wanted.items() if amount}, **chosen)

    def end(self, future: PrefectFuture[Any]) -> None:
        """Cancel a task run; its worker notices and ends the commands."""
        task = future.wrapped_future  # type: ignore[attr-defined]
        with suppress(ClosedClientError):
            task.cancel()
            self._ended.add(task.key)

    def wait_for_ends(self) -> None:
        """Wait until the workers have killed the commands of cancelled task runs, if the scheduler is still there."""
        deadline = time.monotonic() + _END_LIMIT_S
        while self._ended and self.client.status == "running" and time.monotonic() < deadline:
            try:
                at_work = self.client.run(keys_at_work).values()
            except (OSError, CancelledError):
                return
            if not self._ended.intersection(*at_work):
                return
            time.sleep(0.1)

    def _workers(self) -> dict[str, Any]:
        assert self.client.scheduler
        # `scheduler_info` may meanwhile be one without workers.
        asked = self.client.sync(self.client.scheduler.identity, n_workers=-1, callback_timeout=_ANSWER_LIMIT_S)
        workers: dict[str, Any] = asked["workers"]
        return workers


@contextmanager
def at(address: str, workers: int | None) -> Iterator[DaskCluster]:
    """Connect to the Dask scheduler at an address; raises UserError if none answers there."""
    try:
        client = Client(address, set_as_default=False, timeout="20s")
    except (OSError, TypeError, ValueError) as error:  # TypeError: no keys for tls://
        keys = "; set DASK_DISTRIBUTED__COMM__TLS__CA_FILE, ...__CLIENT__CERT and ...__CLIENT__KEY to the cluster's"
        advice = keys if address.startswith("tls:") else ""
        raise UserError(f"no Dask scheduler answers at {address}: {error}{advice}") from error
    with client:
        client.register_plugin(DeclaredResources({"PREFECT_API_URL": os.environ["PREFECT_API_URL"]}))
        client.register_plugin(FreeTasks())
        cluster = DaskCluster(OpenDaskTaskRunner(address=address), client, address, workers)
        yield cluster
        cluster.wait_for_ends()


@contextmanager
def local(threads: int) -> Iterator[LocalRunner]:
    """Start a Dask cluster of one worker on loopback, for the time of a run; its scheduler is in this process."""
    collect_no_garbage_while_listing_frames()
    options: dict[str, Any] = {
        "n_workers": 1,
        "threads_per_worker": threads,
        "host": "127.0.0.1",
        "dashboard_address": "127.0.0.1:0",
        "preload": ["dvcfleet.runners.dask.frames"],
    }
    # By default each of its processes looks fifty times a second whether it is late, which nobody is told here.
    with dask.config.set({"distributed.admin.tick.interval": "1s"}):
        yield LocalRunner(OpenDaskTaskRunner(cluster_kwargs=options), threads, losses=LOSSES)
