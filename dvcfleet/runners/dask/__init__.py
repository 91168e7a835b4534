"""Dask, through prefect-dask: a cluster at an address, or one of this machine for the time of a run."""

from contextlib import AbstractContextManager

from dvcfleet.runners import Runner, threads_here

TAKES_ADDRESS = True


def open_runner(workers: int | None, address: str | None) -> AbstractContextManager[Runner]:
    """Connect to the scheduler at the address, or start one."""
    from dvcfleet.runners.dask.cluster import at, local

    return at(address, workers) if address else local(threads_here(workers))
