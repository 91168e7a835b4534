"""Threads of this process, each of which waits for a stage's commands: the default runner."""

from collections.abc import Iterator
from contextlib import contextmanager

from dvcfleet.runners import LocalRunner, RunnerRequest

TAKES_ADDRESS = False


@contextmanager
def open_runner(asked: RunnerRequest) -> Iterator[LocalRunner]:
    """Open a pool of threads."""
    from prefect.task_runners import ThreadPoolTaskRunner

    yield LocalRunner(ThreadPoolTaskRunner(max_workers=asked.threads_here), asked.threads_here)
