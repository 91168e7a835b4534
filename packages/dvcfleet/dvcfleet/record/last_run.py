"""The last run of a repository, from its ledger."""

from collections import Counter
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from dvcfleet.messages import Result
from dvcfleet.record.ledger import newest_first, own_executions
from dvcfleet.repository import is_at_work
from dvcfleet.run_names import begun_run


@dataclass(frozen=True)
class LastRun:
    """A run: its name and Prefect's id, its state in words, and its first start and last end (UTC).

    `counts`: the number of stages by result, the last of each stage; `failed`: the failed stages.
    """

    name: str
    flow_run: str | None
    state: str
    began: datetime
    ended: datetime
    counts: dict[str, int]
    failed: tuple[str, ...]


def last_run(folder: Path) -> LastRun | None:
    """Read the last run of the repository with this state folder; None if no stage has run."""
    name = next((line.run for _, line in newest_first(folder) if line.result != Result.RENAMED), None)
    if name is None:
        return None
    lines = [line for line in own_executions(folder) if line.run == name and line.result != Result.RENAMED]
    results = {line.stage: line.result for line in lines}
    failed = tuple(stage for stage, result in results.items() if result == Result.FAILED)
    return LastRun(
        name=name,
        flow_run=lines[-1].flow_run,
        state=_state(folder, name, bool(failed)),
        began=min(datetime.fromisoformat(line.began) for line in lines),
        ended=max(line.ended for line in lines),
        counts=dict(Counter(results.values())),
        failed=failed,
    )


def _state(folder: Path, name: str, failed: bool) -> str:
    if is_at_work(folder):
        return "running"
    if begun_run(folder) == name:
        return "failed" if failed else "stopped"
    return "done"
