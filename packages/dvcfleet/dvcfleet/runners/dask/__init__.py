"""Dask, through prefect-dask: a cluster at an address, or one of this machine for the time of a run."""

from contextlib import AbstractContextManager

from dvcfleet.runners import Runner, RunnerRequest

TAKES_ADDRESS = True


def open_runner(asked: RunnerRequest) -> AbstractContextManager[Runner]:
    """Connect to the scheduler at the address, or start one."""
    from dvcfleet.runners.dask.cluster import at, local

    return at(asked.address, asked.workers) if asked.address else local(asked.threads_here)
