"""Choose the saved runs to keep: newer ones, the last one, and on request those with an entry's best score."""

import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from dvcfleet.git import git_if_any
from dvcfleet.record.chain import identity_in
from dvcfleet.record.ledger import executions
from dvcfleet.repository import STATE_FOLDER
from merganser.flows.repositories.identity import own_identities
from merganser.limits import parse_yaml
from merganser.tasks.stages import SCORES, SUMMARY

_NAMES = 5  # parts of a reference refs/exps/aa/bbb.../NAME


@dataclass(frozen=True)
class SavedRun:
    """A run saved as an experiment: its name, git reference, commit and time.

    `by_engine`: not saved by DVC. `identity`: that of its comparison, empty if it has none.
    """

    name: str
    ref: str
    commit: str
    saved: datetime
    by_engine: bool
    identity: str


def saved_runs(root: Path) -> list[SavedRun]:
    """List this comparison's runs that the engine saved as experiments, oldest first, without DVC's own."""
    return [run for run in own_experiments(root) if run.by_engine]


def own_experiments(root: Path) -> list[SavedRun]:
    """List this comparison's experiments, and those without an identity: DVC's own, and older ones.

    Other comparisons in the git repository have theirs in the same place. The oldest comes first; experiments of
    one second, git's resolution, are in the ledger's order.
    """
    own = own_identities(root)
    order = {line.run: number for number, line in enumerate(executions(root / STATE_FOLDER))}
    own_runs = [run for run in experiments(root) if run.identity in own]
    return sorted(own_runs, key=lambda run: (run.saved, order.get(run.name, -1)))


def experiments(root: Path) -> list[SavedRun]:
    """List all experiments, including those of other comparisons and of DVC."""
    form = "--format=%(refname)%00%(objectname)%00%(committerdate:unix)%00%(contents)%00"
    fields = (git_if_any(root, "for-each-ref", form, "refs/exps") or "").split("\0")
    listed = zip(fields[::4], fields[1::4], fields[2::4], fields[3::4], strict=False)
    refs = ((ref.strip(), *others) for ref, *others in listed)
    return [_read(*each) for each in refs if each[0].count("/") == _NAMES - 1]


def _read(ref: str, commit: str, date: str, message: str) -> SavedRun:
    name, saved = ref.rpartition("/")[2], datetime.fromtimestamp(int(date), UTC)
    by_engine = message.partition("\n")[0] == f"run {name}"
    return SavedRun(name, ref, commit, saved, by_engine, identity_in(message))


def numbers_of_run(root: Path, run: SavedRun, object_path: Callable[[str], str]) -> dict[str, dict[str, Any]]:
    """Return a run's numbers by entry, from git or DVC's cache; empty if neither has them.

    Earlier versions wrote metrics.json. `object_path`: returns the path of a content in DVC's cache, by its md5.
    """
    shown = {name: git_if_any(root, "show", f"{run.commit}:./{name}") for name in ("dvc.lock", str(SUMMARY))}
    with suppress(ValueError, OSError, AttributeError, TypeError, KeyError):  # what is damaged has no numbers
        lock = parse_yaml(shown["dvc.lock"] or "", run.name) or {}
        outs = [out for entry in lock.get("stages", {}).values() for out in entry.get("outs", ())]
        md5s = {out["path"]: out.get("md5") for out in outs}
        md5 = md5s.get(str(SCORES)) or md5s.get(str(SUMMARY))
        cached = Path(object_path(md5)) if md5 else None
        text = cached.read_text(encoding="utf-8") if cached and cached.is_file() else shown[str(SUMMARY)]
        return {name: values for name, values in json.loads(text or "{}").items() if isinstance(values, dict)}
    return {}


def split_runs(
    root: Path, since: datetime, best: bool, object_path: Callable[[str], str]
) -> tuple[list[SavedRun], list[SavedRun]]:
    """Return the saved runs that stay (newer ones, the last, with `best` each entry's best one), and those that go."""
    runs = saved_runs(root)
    stay = {run.ref for run in runs if run.saved >= since} | {run.ref for run in runs[-1:]}
    if best:
        stay |= set(_best(root, runs, object_path))
    return [run for run in runs if run.ref in stay], [run for run in runs if run.ref not in stay]


def _best(root: Path, runs: list[SavedRun], object_path: Callable[[str], str]) -> Iterator[str]:
    best: dict[str, tuple[float, str]] = {}
    for run in runs:
        for entry, values in numbers_of_run(root, run, object_path).items():
            mean = values.get("mean")
            if isinstance(mean, int | float) and mean >= best.get(entry, (mean, ""))[0]:
                best[entry] = float(mean), run.ref
    return (ref for _, ref in best.values())
