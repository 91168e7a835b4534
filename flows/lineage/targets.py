"""What a person may ask about: a stage, a file, an MLflow run, a cell of the report."""

import csv
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flows.lineage.tree import RECORDS, overlap, read_json
from merganser.errors import InputError, did_you_mean

if TYPE_CHECKING:
    from dvc.repo import Repo

METRICS, PROFILES, RESULTS = "data/metrics", "data/profiles/merge", "report/results.csv"
_RUN_ID = re.compile("[0-9a-f]{32}")
_FROM_PROFILE = ("amr", "wall_s", "peak_rss_bytes")
_RELATIVE = ("normalised_accuracy", "accuracy_drop_rate")


@dataclass(frozen=True)
class Target:
    """What was asked for: the files that hold it, the stages that made them, and its value where it is a number."""

    text: str
    stages: tuple[str, ...]
    files: tuple[str, ...]
    value: Any = None


def find_target(repo: "Repo", text: str) -> Target:
    """Find a stage, an output or a file in one, an MLflow run, or a cell of the report (ENTRY, ENTRY/COLUMN).

    Raises InputError where there is none of that name, or where several stages made what is in a folder.
    """
    stages = {stage.addressing: stage for stage in repo.index.stages}
    if text in stages:
        return Target(text, (text,), tuple(_outs(repo, text)))
    found = _of_file(repo, text) or _of_run(repo, text) or _of_cell(repo, text)
    if found:
        return found
    known = [*stages, *_entries()]
    raise InputError(
        f"{text}: no stage, output, MLflow run or entry of the report has this name{did_you_mean(text, known)}; "
        "give a stage, a file that one made, a run's id, ENTRY or ENTRY/COLUMN"
    )


def _outs(repo: "Repo", stage: str) -> list[str]:
    return [_name(repo, out.fs_path) for each in repo.index.stages if each.addressing == stage for out in each.outs]


def _name(repo: "Repo", path: str) -> str:
    return Path(os.path.relpath(path, repo.root_dir)).as_posix()


def _of_file(repo: "Repo", text: str) -> Target | None:
    name = _name(repo, os.path.abspath(text))
    near = {out: each for each in repo.index.stages for out in _outs_of(repo, each) if overlap(name, out)}
    holding = [stage for out, stage in near.items() if name == out or name.startswith(f"{out}/")]
    if holding:
        value = read_json(Path(repo.root_dir, name)) if name.startswith(f"{METRICS}/") else None
        return Target(text, (holding[0].addressing,), (name,), value)
    if near:
        some = f"{len(near)} outputs, such as {next(iter(near))}"
        raise InputError(f"{text}: a folder of {some}; name one of them")
    if os.path.exists(text):
        raise InputError(f"{text}: no stage made it; name what came of it")
    return None


def _outs_of(repo: "Repo", stage: Any) -> Iterable[str]:
    return (_name(repo, out.fs_path) for out in stage.outs)


def _of_run(repo: "Repo", text: str) -> Target | None:
    if not _RUN_ID.fullmatch(text):
        return None
    receipts = {path: read_json(path) or {} for path in sorted(Path(repo.root_dir, RECORDS).glob("*.json"))}
    for key, stages in (("run_id", None), ("parent_run_id", ("report",))):
        for path, receipt in receipts.items():
            if receipt.get(key) == text:
                name = _name(repo, str(path))
                found = _of_file(repo, str(path))
                return Target(text, stages or (found.stages if found else ()), () if stages else (name,))
    raise InputError(
        f"{text}: no receipt in {RECORDS} names this MLflow run; if it is of an earlier result, its tag "
        "mlflow.source.git.commit says at which commit: `git checkout COMMIT && dvc checkout` brings that back"
    )


def _of_cell(repo: "Repo", text: str) -> Target | None:
    entry, _, column = text.partition("/")
    if entry not in _entries():
        return None
    files = _files_of(repo, entry, column)
    if not files:
        columns = [*_tasks(repo, entry), "mean", *_RELATIVE, *_FROM_PROFILE]
        raise InputError(
            f"{text}: no such column of {entry}{did_you_mean(column, columns)}; there are {', '.join(columns)}"
        )
    found = [target for file in files if (target := _of_file(repo, file))]
    stages = dict.fromkeys(stage for target in found for stage in target.stages)
    return Target(text, tuple(stages), tuple(files), _cell(repo, entry, column or "mean"))


def _files_of(repo: "Repo", entry: str, column: str) -> list[str]:
    """Return the files that a cell of the report, or a whole row, is computed from."""
    metrics = {task: f"{METRICS}/{entry}/{task}.json" for task in _tasks(repo, entry)}
    if column in metrics:
        return [metrics[column]]
    if column in _FROM_PROFILE:
        return [f"{PROFILES}/{entry}.json"]
    if column == "mean":
        return list(metrics.values())
    if column in _RELATIVE:
        own = [name for name, one in _entries().items() if one.get("method") == "individual"][:1]
        return [*metrics.values(), *(f"{METRICS}/{own[0]}/{task}.json" for task in metrics if own)]
    return [] if column else [f"{RECORDS}/{entry}.json"]


def _tasks(repo: "Repo", entry: str) -> list[str]:
    """Return the tasks that an entry was measured on, as its stages have it."""
    folder = f"{METRICS}/{entry}"
    outs = (out for stage in repo.index.stages for out in _outs_of(repo, stage))
    return [Path(out).stem for out in outs if os.path.dirname(out) == folder]


def _entries() -> dict[str, Any]:
    """Return the entries of a Merganser project's params.yaml; nothing elsewhere."""
    from flows.checks import is_project
    from merganser.params import read_yaml

    content = read_yaml(Path("params.yaml")) if is_project() else {}
    entries = content.get("methods") if isinstance(content, dict) else None
    return entries if isinstance(entries, dict) else {}


def _cell(repo: "Repo", entry: str, column: str) -> Any:
    """Return a number out of the report's table, as it stands there."""
    table = Path(repo.root_dir, RESULTS)
    if not table.is_file():
        return None
    with table.open(newline="") as file:
        return next((row.get(column) for row in csv.DictReader(file) if row["entry"] == entry), None)
