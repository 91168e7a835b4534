"""The resources of a cluster at an address: threads, memory and GPUs on its nodes."""

import os
from collections.abc import Mapping, Sequence
from urllib.parse import urlsplit

import psutil  # type: ignore[import-untyped]

from dvcfleet.errors import UserError
from dvcfleet.planning.resources import Resources
from dvcfleet.scheduling.resource_pool import Machine, ResourcePool

LOOPBACK = ("127.0.0.1", "localhost", "::1")


def cluster_pool(
    where: str, machines: list[Machine], workers: int | None, resources: Mapping[str, Resources]
) -> ResourcePool:
    """Return a pool of `workers` threads of a cluster, by default all.

    With more `workers` than there are now, nodes are to join later: then the cluster itself counts memory and GPUs.
    Raises UserError for a stage that no machine can run, and if there is no machine and no number was given.
    """
    if not machines and not workers:
        raise UserError(f"{where} has no workers; start one, or say with --workers how many threads there will be")
    check_nodes_reach_server([machine.address for machine in machines])
    for name in fitting_none(machines, resources) if machines else ():
        raise UserError(f"stage {name}: {none_fits(machines, resources[name])}")
    threads = round(sum(machine.has.threads for machine in machines))
    return ResourcePool(workers or threads, machines=machines if (workers or threads) <= threads else ())


def fitting_none(machines: Sequence[Machine], resources: Mapping[str, Resources]) -> list[str]:
    """List the stages that none of the machines could run, even with nothing else on it."""
    return [name for name, each in resources.items() if not any(machine.has.holds(each) for machine in machines)]


def none_fits(machines: Sequence[Machine], resources: Resources) -> str:
    """Say what a stage asks for that none of the machines has."""
    gpus = f", {resources.gpus} GPUs" if resources.gpus else ""
    memory = f", {resources.memory_bytes / 1e9:.3g} GB of memory" if resources.memory_bytes else ""
    has = "; ".join(map(str, machines)) or "there is none"
    return f"asks for {resources.threads} threads{gpus}{memory}, and no node has all ({has})"


def refuse_wrong_gpus(gpus: Mapping[str, Sequence[str]], declared: Mapping[str, float]) -> None:
    """Raise UserError if a worker sees fewer GPUs than it declares, or two workers on one machine the same one.

    `gpus` lists those that each worker sees, by its address.
    """
    for worker, count in declared.items():
        if count > len(gpus[worker]):
            raise UserError(
                f"the worker {worker} declares {count:g} GPUs, and sees {len(gpus[worker])}; start it with "
                "CUDA_VISIBLE_DEVICES naming as many, or declare fewer"
            )
    owners: dict[tuple[str | None, str], str] = {}
    for worker, gpu in ((worker, gpu) for worker, names in gpus.items() for gpu in names):
        owner = owners.setdefault((urlsplit(worker).hostname, gpu), worker)
        if owner != worker:
            raise UserError(
                f"the workers {owner} and {worker} are on one machine, and both have GPU {gpu}; start each with "
                "CUDA_VISIBLE_DEVICES naming GPUs of its own"
            )


def check_nodes_reach_server(machines: Sequence[str]) -> None:
    """Raise UserError if a node cannot reach Prefect's server because that listens on this machine only.

    `machines`: the nodes' addresses.
    """
    server = urlsplit(os.environ["PREFECT_API_URL"]).hostname
    own = {address.address for addresses in psutil.net_if_addrs().values() for address in addresses}
    away = [machine for machine in machines if machine not in own]
    if away and server in LOOPBACK:
        raise UserError(
            f"Prefect's server listens on this machine only, and {away[0]} is another; start one that it reaches "
            "(prefect server start --host ADDRESS) and set PREFECT_API_URL to http://ADDRESS:4200/api"
        )
