"""Threads of this process, each of which waits for a stage's commands: the default runner."""

from collections.abc import Iterator
from contextlib import contextmanager

from dvcfleet.runners import LocalRunner, threads_here

TAKES_ADDRESS = False


@contextmanager
def open_runner(workers: int | None, address: str | None) -> Iterator[LocalRunner]:
    """Open a pool of threads."""
    from prefect.task_runners import ThreadPoolTaskRunner

    threads = threads_here(workers)
    yield LocalRunner(ThreadPoolTaskRunner(max_workers=threads), threads)
