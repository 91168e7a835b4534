"""Processes of this machine, each of which waits for a stage's commands."""

from collections.abc import Iterator
from contextlib import contextmanager

from dvcfleet.process_settings import ignore_interrupts
from dvcfleet.runners import LocalRunner, RunnerRequest

TAKES_ADDRESS = False


@contextmanager
def open_runner(asked: RunnerRequest) -> Iterator[LocalRunner]:
    """Open a pool of processes."""
    from prefect.task_runners import ProcessPoolTaskRunner

    threads = asked.threads_here
    yield LocalRunner(ProcessPoolTaskRunner(max_workers=threads, initializer=ignore_interrupts), threads)
