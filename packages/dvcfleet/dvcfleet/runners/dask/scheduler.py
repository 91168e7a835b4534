"""In a Dask scheduler: free the tasks whose chosen worker is gone, since Dask would let them wait for it for good.

Dask's own `allow_other_workers` also forgets which resources a task needs.
"""

from typing import Any

from distributed import SchedulerPlugin
from distributed.scheduler import Scheduler, TaskState

from dvcfleet.runners.dask.frames import collect_no_garbage_while_listing_frames


class FreeTasks(SchedulerPlugin):
    """A plugin by which any worker that has the resources runs a task whose chosen worker is gone."""

    name = "dvcfleet-free-tasks"

    async def start(self, scheduler: Scheduler) -> None:
        """Prevent a deadlock of Python's."""
        collect_no_garbage_while_listing_frames()

    def update_graph(self, scheduler: Scheduler, *, keys: set[Any], **_: Any) -> None:
        """Free new tasks for a worker that has just gone."""
        _freed(scheduler, [scheduler.tasks[key] for key in keys if key in scheduler.tasks])

    def remove_worker(self, scheduler: Scheduler, worker: str, *, stimulus_id: str, **_: Any) -> None:
        """Free the tasks of a worker that goes, and have those start that now wait."""
        waiting = [task.key for task in _freed(scheduler, list(scheduler.tasks.values())) if task.state == "no-worker"]
        scheduler.transitions(dict.fromkeys(waiting, "processing"), stimulus_id)


def _freed(scheduler: Scheduler, tasks: list[TaskState]) -> list[TaskState]:
    """Free those of the tasks whose chosen workers are all gone, and return them."""
    freed = [
        task for task in tasks if task.worker_restrictions and not task.worker_restrictions & set(scheduler.workers)
    ]
    for task in freed:
        task.worker_restrictions = None
    return freed
