"""Which of the saved runs are kept: the newer ones, the last one, and on wish those with an entry's best score."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from dvcfleet.git import git_if_any
from dvcfleet.record.ledger import executions
from dvcfleet.repository import STATE_FOLDER

_NAMES = 5  # parts of a reference refs/exps/aa/bbb.../NAME


@dataclass(frozen=True)
class SavedRun:
    """A run that is saved as an experiment: its name, its git reference and commit, and when it was saved."""

    name: str
    ref: str
    commit: str
    saved: datetime


def saved_runs(root: Path) -> list[SavedRun]:
    """List the runs that the engine saved as experiments, oldest first; none of DVC's own experiments.

    Those of one second, which is all that git knows of a time, are in the ledger's order.
    """
    form = "--format=%(refname)%00%(objectname)%00%(committerdate:unix)%00%(subject)"
    listed = git_if_any(root, "for-each-ref", form, "refs/exps") or ""
    fields = (line.split("\0") for line in listed.splitlines())
    order = {line.run: number for number, line in enumerate(executions(root / STATE_FOLDER))}
    found = [
        SavedRun(ref.rpartition("/")[2], ref, commit, datetime.fromtimestamp(int(date), UTC))
        for ref, commit, date, subject in fields
        if ref.count("/") == _NAMES - 1 and subject == f"run {ref.rpartition('/')[2]}"
    ]
    return sorted(found, key=lambda run: (run.saved, order.get(run.name, -1)))


def experiment_commits(root: Path) -> set[str]:
    """Return the commits of all experiments, those that DVC itself saved among them."""
    listed = git_if_any(root, "for-each-ref", "--format=%(refname)%00%(objectname)", "refs/exps") or ""
    fields = (line.split("\0") for line in listed.splitlines())
    return {commit for ref, commit in fields if ref.count("/") == _NAMES - 1}


def numbers_of(root: Path, run: SavedRun) -> dict[str, dict[str, Any]]:
    """Return what metrics.json said in a run, by entry; empty if it had none."""
    try:
        found = json.loads(git_if_any(root, "show", f"{run.commit}:./metrics.json") or "{}")
    except ValueError:
        return {}
    return {name: values for name, values in found.items() if isinstance(values, dict)}


def split_runs(root: Path, since: datetime, best: bool) -> tuple[list[SavedRun], list[SavedRun]]:
    """Return the saved runs that stay, and those that go.

    It stays what was saved since then, and the last one; with `best` also the last run with each entry's best mean.
    """
    runs = saved_runs(root)
    stay = {run.ref for run in runs if run.saved >= since} | {run.ref for run in runs[-1:]}
    if best:
        stay |= set(_best(root, runs))
    return [run for run in runs if run.ref in stay], [run for run in runs if run.ref not in stay]


def _best(root: Path, runs: list[SavedRun]) -> Iterator[str]:
    found: dict[str, tuple[float, str]] = {}
    for run in runs:
        for entry, values in numbers_of(root, run).items():
            mean = values.get("mean")
            if isinstance(mean, int | float) and mean >= found.get(entry, (mean, ""))[0]:
                found[entry] = float(mean), run.ref
    return (ref for _, ref in found.values())
