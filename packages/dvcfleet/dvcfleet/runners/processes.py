"""Processes of this machine, each of which waits for a stage's commands."""

from collections.abc import Iterator
from contextlib import contextmanager

from dvcfleet.runners import LocalRunner, RunnerRequest
from dvcfleet.stop_signals import ignore_interrupts

TAKES_ADDRESS = False


@contextmanager
def open_runner(asked: RunnerRequest) -> Iterator[LocalRunner]:
    """Open a pool of processes."""
    from prefect.task_runners import ProcessPoolTaskRunner

    threads = asked.threads_here
    yield LocalRunner(ProcessPoolTaskRunner(max_workers=threads, initializer=ignore_interrupts), threads)
