"""Listing threads' frames without a deadlock, for Dask, which does it while tasks run.

Python up to 3.11.8 holds a lock of its threads' list meanwhile, and may collect garbage, which needs that lock:
https://github.com/python/cpython/issues/106883. A worker that this happens to stands still for good.
"""

import gc
import sys
from types import FrameType

from dvcfleet.process_settings import ignore_interrupts

MENDED = (3, 11, 9)


def collect_no_garbage_while_listing_frames() -> None:
    """Have `sys._current_frames` collect no garbage, as newer Pythons do by themselves; again does nothing."""
    if sys.version_info >= MENDED or sys._current_frames.__module__ == __name__:
        return
    listing = sys._current_frames

    def current_frames() -> dict[int, FrameType]:
        if not gc.isenabled():
            return listing()
        gc.disable()
        try:
            return listing()
        finally:
            gc.enable()

    sys._current_frames = current_frames


def dask_setup(worker: object) -> None:
    """Have the worker of a run's own cluster ignore Ctrl-C, which the run handles; Dask calls this as a preload."""
    ignore_interrupts()
    collect_no_garbage_while_listing_frames()
