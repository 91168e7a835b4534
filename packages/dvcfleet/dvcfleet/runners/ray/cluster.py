"""Ray as a runner, through prefect-ray."""

import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import ray
from prefect.futures import PrefectFuture
from prefect.task_runners import TaskRunner
from prefect_ray import RayTaskRunner
from prefect_ray.context import remote_options
from ray.exceptions import RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from dvcfleet.errors import UserError
from dvcfleet.messages import Job
from dvcfleet.planning.resources import Resources
from dvcfleet.runners import LocalRunner
from dvcfleet.scheduling.resource_pool import Capacity, Machine, ResourcePool, cluster_pool

_COUNTED = ("CPU", "memory", "GPU")
LOSSES: tuple[type[BaseException], ...] = tuple(kind for kind in RayError.__subclasses__() if kind is not RayTaskError)


@dataclass
class RayCluster:
    """A Ray cluster at an address, which counts its nodes' resources."""

    task_runner: TaskRunner[Any]
    address: str
    workers: int | None
    remote = True
    losses = LOSSES

    def pool(self, resources: Mapping[str, Resources]) -> ResourcePool:
        """Return the cluster's pool."""
        return cluster_pool(f"the Ray cluster at {self.address}", self.machines(), self.workers, resources)

    def machines(self) -> list[Machine]:
        """Return the nodes that are alive."""
        alive = [node for node in ray.nodes() if node["Alive"]]
        return [
            Machine(
                node["NodeID"],
                node["NodeManagerAddress"],
                Capacity(*(node["Resources"].get(each, 0) for each in _COUNTED)),
            )
            for node in alive
        ]

    def requesting(self, job: Job) -> AbstractContextManager[Any]:
        """Request a job's resources of a node, if it is still there of the one chosen for it."""
        return _asking(job.resources, job.machine)

    def end(self, future: PrefectFuture[Any]) -> None:
        """Kill the worker of a task run."""
        ray.cancel(future.wrapped_future, force=True)  # type: ignore[attr-defined]


@contextmanager
def at(address: str, workers: int | None) -> Iterator[RayCluster]:
    """Connect to the Ray cluster at an address; raises UserError if none answers there."""
    with _connected(address=address):
        yield RayCluster(RayTaskRunner(), address, workers)


@contextmanager
def local(threads: int) -> Iterator[LocalRunner]:
    """Start a Ray cluster of one node on loopback, for the time of a run."""
    with _connected(num_cpus=threads, num_gpus=0, include_dashboard=False, _node_ip_address="127.0.0.1"):
        # The run itself counts memory and assigns GPUs.
        yield LocalRunner(RayTaskRunner(), threads, lambda job: _asking(Resources(job.resources.threads)), LOSSES)


@contextmanager
def _connected(**options: Any) -> Iterator[None]:
    """Connect this process to a Ray cluster, which Prefect's task runner then uses."""
    # Workers report to the same Prefect server as the run.
    environment = {"env_vars": {"PREFECT_API_URL": os.environ["PREFECT_API_URL"]}}
    try:
        ray.init(
            namespace="dvcfleet", log_to_driver=False, logging_level=logging.ERROR, runtime_env=environment, **options
        )
    except (ConnectionError, RayError, RuntimeError, ValueError) as error:  # RayError: no token where one is asked for
        where = options.get("address", "this machine")
        token = "if it asks for a token, set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN"
        raise UserError(f"no Ray cluster answers at {where}: {error}; {token}") from error
    try:
        yield
    finally:
        ray.shutdown()


def _asking(resources: Resources, machine: str = "") -> AbstractContextManager[Any]:
    # The run itself restarts a stage whose worker was lost.
    options: dict[str, Any] = {"num_cpus": resources.threads, "num_gpus": resources.gpus, "max_retries": 0}
    if resources.memory_bytes:
        options["memory"] = resources.memory_bytes
    if machine:
        options["scheduling_strategy"] = NodeAffinitySchedulingStrategy(machine, soft=True)
    return remote_options(**options)
