"""What the event loop needs: a workspace, an executor and a watcher."""

from collections.abc import Callable
from typing import Any, Protocol

from dvcfleet.dvc_adapter.protocols import Stage
from dvcfleet.messages import Ending, Job, Outcome, Result
from dvcfleet.planning.plan import PlannedStage
from dvcfleet.planning.resources import Resources


class Watcher(Protocol):
    """Receives the events of a run."""

    def began(self, name: str) -> None:
        """Called when a stage's commands were submitted."""

    def again(self, name: str, why: str) -> None:
        """Called when a stage failed, or its worker was lost, and it will be submitted again."""

    def ended(self, ending: Ending) -> None:
        """Called when a stage has ended."""


class Workspace(Protocol):
    """Prepares stages' jobs and stores their results."""

    def prepare(self, stage: Stage, planned: PlannedStage) -> tuple[Result | None, str]:
        """Settle a stage without running it, or prepare its job and return None as result; also return the reason."""

    def job(self, stage: Stage, resources: Resources) -> Job:
        """Return the stage's job for a worker."""

    def storing(self, stage: Stage, outcome: Outcome) -> Callable[[], None] | None:
        """Return the slow part of `keep`, for a thread to call before it; None if nothing is slow."""

    def keep(self, stage: Stage, outcome: Outcome) -> tuple[dict[str, Any] | None, list[str]]:
        """Store the outputs of a successful stage.

        Returns its entry for dvc.lock, None for a .dvc file's stage, and which of its inputs changed meanwhile.
        """

    def finish(self, fetch_results: bool) -> None:
        """Push or fetch outputs when all stages have ended; with `fetch_results`, fetch all of them to this machine."""


class ExecutorLostError(Exception):
    """No worker is left to run a job."""


class Executor(Protocol):
    """Runs jobs."""

    def submit(self, job: Job) -> None:
        """Start a job; raise ExecutorLostError if no worker is left."""

    def next_outcome(self, limit_s: float | None = None) -> Outcome:
        """Wait for a job to end; raise TimeoutError if none ends in time."""

    def abandon(self) -> None:
        """End all running jobs, so that their outcomes follow at once."""
