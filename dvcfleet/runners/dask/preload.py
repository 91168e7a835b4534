"""In the worker of a run's own Dask cluster, as a preload."""

from dvcfleet.runners.dask.frames import collect_no_garbage_while_listing_frames
from dvcfleet.stop_signals import ignore_interrupts


def dask_setup(worker: object) -> None:
    """Ignore Ctrl-C, which the run handles, and prevent a deadlock of Python's; Dask calls this."""
    ignore_interrupts()
    collect_no_garbage_while_listing_frames()
