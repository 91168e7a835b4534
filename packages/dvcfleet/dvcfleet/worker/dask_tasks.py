"""In a Dask worker: detect that the current task was cancelled, since Dask forgets such a task but cannot end it."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_AT_WORK: set[str] = set()


@contextmanager
def as_task() -> Iterator[Callable[[], bool] | None]:
    """Yield a function that tells whether this thread's Dask task is still wanted; None outside a Dask task."""
    if "distributed" not in sys.modules:
        yield None
        return
    from distributed import get_worker

    try:
        worker = get_worker()
        key, tasks = str(worker.get_current_task()), worker.state.tasks
    except ValueError:
        yield None
        return
    _AT_WORK.add(key)
    try:
        yield lambda: key in tasks and tasks[key].state == "executing"
    finally:
        _AT_WORK.discard(key)


def keys_at_work() -> set[str]:
    """Return the keys of the Dask tasks whose commands run below this worker."""
    return set(_AT_WORK)
