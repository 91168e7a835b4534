"""The resources that stages share, machine by machine, and the part allocated to each running stage."""

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from urllib.parse import urlsplit

import psutil  # type: ignore[import-untyped]

from dvcfleet.errors import UserError
from dvcfleet.planning.resources import Resources
from dvcfleet.terminal.machine_limits import usable_memory
from dvcfleet.worker.gpus import gpus_here


@dataclass(frozen=True)
class Capacity:
    """An amount of each resource; infinite for one that is not counted."""

    threads: float
    memory_bytes: float = math.inf
    gpus: float = math.inf

    def holds(self, resources: "Resources | Capacity") -> bool:
        """Tell whether that much is there."""
        return (
            self.threads >= resources.threads
            and self.memory_bytes >= resources.memory_bytes
            and self.gpus >= resources.gpus
        )

    def without(self, taken: "Resources | Capacity") -> "Capacity":
        """Return what remains; less than nothing if more is taken than there is."""
        return Capacity(self.threads - taken.threads, self.memory_bytes - taken.memory_bytes, self.gpus - taken.gpus)

    def plus(self, more: "Capacity") -> "Capacity":
        """Return both amounts together."""
        return Capacity(self.threads + more.threads, self.memory_bytes + more.memory_bytes, self.gpus + more.gpus)


@dataclass(frozen=True)
class Machine:
    """A machine for stages: `key` is the cluster's name for it, `address` the one that people know."""

    key: str
    address: str
    has: Capacity

    def __str__(self) -> str:
        has = self.has
        return f"{self.address} has {has.threads:g} threads, {has.gpus:g} GPUs, {has.memory_bytes / 1e9:.3g} GB"


@dataclass(frozen=True)
class Allocation:
    """The resources allocated to one stage on a machine; `gpus`: by name, if they are given out by name."""

    threads: int
    capacity: Capacity
    gpus: tuple[str, ...] = ()
    machine: str = ""


class ResourcePool:
    """Threads, memory and GPUs for stages: of one machine, its GPUs by name, or of the `machines` of a cluster.

    `threads`: at once, in all. If GPUs are not counted, or the cluster does without saying where, `gpus` is None
    and there are no `machines`. `free` is what is not allocated of each machine, `on` the allocations on it by stage.
    """

    def __init__(
        self,
        threads: int,
        memory_bytes: float = math.inf,
        gpus: tuple[str, ...] | None = None,
        machines: Sequence[Machine] = (),
    ) -> None:
        self.threads, self.memory_bytes, self.gpus = threads, memory_bytes, gpus
        counted = math.inf if gpus is None else len(gpus)
        self.machines = {each.key: each for each in machines} or {
            "": Machine("", "this machine", Capacity(threads, memory_bytes, counted))
        }
        self._is_capped = threads < sum(machine.has.threads for machine in self.machines.values())
        self.given: dict[str, Allocation] = {}
        self.free_threads = threads
        self.free = {key: machine.has for key, machine in self.machines.items()}
        self.on: dict[str, dict[str, Allocation]] = {key: {} for key in self.machines}

    def by_free_capacity(self) -> list[str]:
        """List the machines, those with the fewest free GPUs first: the others stay free for large stages."""
        return sorted(self.free, key=lambda key: (self.free[key].gpus, self.free[key].threads))

    def least(self, resources: Resources) -> Resources:
        """Return what a stage gets: what it requests, but at most all threads."""
        if resources.threads <= self.threads:
            return resources
        return replace(resources, threads=self.threads)

    def is_short_of_workers(self, resources: Resources) -> bool:
        """Tell whether a stage has to wait since fewer threads may be used at once than the machines have."""
        return self._is_capped and self.least(resources).threads > self.free_threads

    def offer(self, resources: Resources, machine: str | None = None) -> Allocation | None:
        """Return the allocation that a stage would get, on this machine or on any; None if too little is free."""
        wanted = self.least(resources)
        if wanted.threads > self.free_threads:
            return None
        for key in self.by_free_capacity() if machine is None else (machine,):
            if self.free[key].holds(wanted):
                capacity = Capacity(wanted.threads, wanted.memory_bytes, wanted.gpus)
                taken = {gpu for share in self.given.values() for gpu in share.gpus}
                free = tuple(gpu for gpu in self.gpus or () if gpu not in taken)
                return Allocation(wanted.threads, capacity, free[: wanted.gpus], key)
        return None

    def give(self, name: str, share: Allocation) -> None:
        """Allocate what was offered to a stage."""
        self.given[name] = self.on[share.machine][name] = share
        self.free_threads -= share.threads
        self.free[share.machine] = self.free[share.machine].without(share.capacity)

    def take_back(self, name: str) -> None:
        """Free what a stage had, if it had anything."""
        share = self.given.pop(name, None)
        if share is not None:
            del self.on[share.machine][name]
            self.free_threads += share.threads
            self.free[share.machine] = self.free[share.machine].plus(share.capacity)

    def refuse_too_much(self, name: str, resources: Resources) -> None:
        """Raise UserError if a stage requests more than this machine has."""
        gpus = len(self.gpus or ())
        if self.gpus is not None and resources.gpus > gpus:
            raise UserError(f"stage {name}: asks for {resources.gpus} GPUs; this machine has {gpus}")
        if resources.memory_bytes > self.memory_bytes:
            asked, has = resources.memory_bytes / 1e9, self.memory_bytes / 1e9
            raise UserError(f"stage {name}: asks for {asked:.3g} GB of memory; this machine has {has:.3g} GB")


def local_pool(threads: int, resources: Mapping[str, Resources]) -> ResourcePool:
    """Return this machine's pool, with GPUs if a stage requests one; raise UserError if one requests too much."""
    any_gpus = any(wanted.gpus for wanted in resources.values())
    pool = ResourcePool(threads, usable_memory(), gpus_here() if any_gpus else None)
    for name, wanted in resources.items():
        pool.refuse_too_much(name, wanted)
    return pool


LOOPBACK = ("127.0.0.1", "localhost", "::1")


def cluster_pool(
    where: str, machines: Sequence[Machine], workers: int | None, resources: Mapping[str, Resources]
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
    """Raise UserError if a worker, by address, sees fewer GPUs than it declares, or two on a machine the same one."""
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
                "CUDA_VISIBLE_DEVICES naming other GPUs"
            )


def check_nodes_reach_server(machines: Sequence[str]) -> None:
    """Raise UserError if Prefect's server listens on this machine only, and one of these addresses is another's."""
    server = urlsplit(os.environ["PREFECT_API_URL"]).hostname
    own = {address.address for addresses in psutil.net_if_addrs().values() for address in addresses}
    away = [machine for machine in machines if machine not in own]
    if away and server in LOOPBACK:
        raise UserError(
            f"Prefect's server listens on this machine only, and {away[0]} is another; start one that it reaches "
            "(prefect server start --host ADDRESS) and set PREFECT_API_URL to http://ADDRESS:4200/api"
        )
