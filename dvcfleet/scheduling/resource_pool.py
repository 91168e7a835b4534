"""The resources that stages share on one machine, and the part allocated to each running stage."""

import math
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil  # type: ignore[import-untyped]

from dvcfleet.errors import UserError
from dvcfleet.planning.resources import Resources

_GPUS_VARIABLE = "CUDA_VISIBLE_DEVICES"
_CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")


@dataclass(frozen=True)
class Allocation:
    """The resources allocated to one stage: threads, bytes of memory, and GPUs by name."""

    threads: int
    memory_bytes: int
    gpus: tuple[str, ...]


@dataclass
class ResourcePool:
    """Threads, memory and GPUs for stages; if a cluster counts them, memory is infinite and `gpus` None."""

    threads: int
    memory_bytes: float = math.inf
    gpus: tuple[str, ...] | None = None
    given: dict[str, Allocation] = field(default_factory=dict)

    @property
    def free_threads(self) -> int:
        """The number of unallocated threads."""
        return self.threads - sum(share.threads for share in self.given.values())

    def offer(self, resources: Resources) -> Allocation | None:
        """Return the allocation that a stage would get, with at most all threads; None if too little is free."""
        threads = min(resources.threads, self.threads)
        taken = {gpu for share in self.given.values() for gpu in share.gpus}
        gpus = [gpu for gpu in self.gpus or () if gpu not in taken][: resources.gpus]
        memory = self.memory_bytes - sum(share.memory_bytes for share in self.given.values())
        lacks_gpus = self.gpus is not None and len(gpus) < resources.gpus
        if threads > self.free_threads or resources.memory_bytes > memory or lacks_gpus:
            return None
        return Allocation(threads, resources.memory_bytes, tuple(gpus))

    def environment(self, share: Allocation) -> dict[str, str]:
        """Return the variables that restrict a stage to its own GPUs; empty if GPUs are not counted here."""
        return {} if self.gpus is None else {_GPUS_VARIABLE: ",".join(share.gpus)}

    def refuse_too_much(self, name: str, resources: Resources, where: str = "this machine") -> None:
        """Raise UserError if a stage requests more than the whole pool has."""
        gpus = len(self.gpus or ())
        if self.gpus is not None and resources.gpus > gpus:
            raise UserError(f"stage {name}: asks for {resources.gpus} GPUs; {where} has {gpus}")
        if resources.memory_bytes > self.memory_bytes:
            asked, has = resources.memory_bytes / 1e9, self.memory_bytes / 1e9
            raise UserError(f"stage {name}: asks for {asked:.3g} GB of memory; {where} has {has:.3g} GB")


def local_pool(threads: int, any_gpus: bool) -> ResourcePool:
    """Return this machine's pool; GPUs are counted only if `any_gpus`, otherwise stages see the same as the run."""
    return ResourcePool(threads, memory_here(), gpus_here() if any_gpus else None)


def memory_here() -> int:
    """Return the memory of this machine in bytes, or of the part of it that this process may use."""
    limit = _CGROUP_LIMIT.read_text().strip() if _CGROUP_LIMIT.is_file() else ""
    total: int = psutil.virtual_memory().total
    return min(total, int(limit)) if limit.isdecimal() else total


def gpus_here() -> tuple[str, ...]:
    """Return the GPUs that this process may use: those in CUDA_VISIBLE_DEVICES, else all of the machine."""
    named = os.environ.get(_GPUS_VARIABLE)
    if named is not None:
        return tuple(gpu.strip() for gpu in named.split(",") if gpu.strip() not in ("", "-1"))
    try:
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=30, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ()
    return tuple(str(number) for number, _ in enumerate(line for line in listed.splitlines() if line.startswith("GPU")))


_OWN, _OWN_LOCK = ResourcePool(sys.maxsize, gpus=()), threading.Lock()


@contextmanager
def own_gpus(name: str, count: int) -> Iterator[dict[str, str]]:
    """Reserve GPUs for a stage from those that a cluster gave this worker; none if it requests none.

    Yields the variables that select them. Raises UserError if the worker has too few free GPUs.
    """
    if not count:
        yield {_GPUS_VARIABLE: ""}
        return
    with _OWN_LOCK:
        # Ray gives a worker different GPUs for each stage.
        _OWN.gpus = gpus_here()
        share = _OWN.offer(Resources(gpus=count))
        if share is None:
            raise UserError(f"stage {name}: asks for {count} GPUs; its worker has {len(_OWN.gpus)}, not all free")
        _OWN.given[name] = share
    try:
        yield _OWN.environment(share)
    finally:
        with _OWN_LOCK:
            del _OWN.given[name]
