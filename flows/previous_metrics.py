"""The metrics before a run, and why its stages ran: the report shows from them what changed since the last run."""

import json
from pathlib import Path
from typing import Any

from dvcfleet.planning.plan import Plan, State

_NUMBERS = Path("metrics.json")
_NAME = "previous_metrics.json"  # tasks.report reads it


def keep_previous_metrics(folder: Path, plan: Plan, run: str) -> None:
    """Save the metrics before the run's first stage changes them, and why its stages run.

    A run that goes on after a failure or a kill keeps what it found when it first began.
    """
    path = folder / _NAME
    kept = _read(path)
    if kept.get("run") != run:
        kept = {"run": run, "numbers": _read(_NUMBERS), "causes": {}}
    kept["causes"] |= _causes(plan)
    draft = path.with_suffix(".draft")
    draft.write_text(json.dumps(kept))
    draft.replace(path)


def _causes(plan: Plan) -> dict[str, list[str]]:
    """Return why each stage runs that does not run because of another one."""
    changed = [node for node in plan.work if node.state in (State.STALE, State.RESTORABLE) and not node.outputs_known]
    return {node.name: list(node.reasons) for node in changed}


def _read(path: Path) -> Any:
    return json.loads(path.read_text()) if path.is_file() else {}
