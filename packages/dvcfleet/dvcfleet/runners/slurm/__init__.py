"""SLURM, through dask-jobqueue and prefect-dask: stages run in jobs of their own shape, which end with the run."""

from contextlib import AbstractContextManager

from dvcfleet.runners import Runner, RunnerRequest

TAKES_ADDRESS = False


def open_runner(asked: RunnerRequest) -> AbstractContextManager[Runner]:
    """Start a Dask scheduler on this machine, from which jobs are submitted."""
    from dvcfleet.runners.slurm.cluster import opened

    return opened(asked)
