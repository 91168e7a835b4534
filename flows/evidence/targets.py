"""Lineage targets besides stages and files: an MLflow run, a cell of the report (ENTRY, ENTRY/COLUMN)."""

import os
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

from dvcfleet.disk import read_json
from dvcfleet.dvc_adapter.protocols import Repo
from dvcfleet.lineage.contents import path_from_root
from dvcfleet.lineage.hooks import target_of_file
from dvcfleet.lineage.steps import Target
from merganser.config import PARAMS
from merganser.config.loading import load_params
from merganser.errors import InputError, did_you_mean
from merganser.flows.steps.answer import read_table
from merganser.limits import read_yaml
from merganser.tasks.stages import MERGE_PROFILES, METRICS, PROFILES, RECORDS

_RUN_ID = re.compile("[0-9a-f]{32}")
_FROM_PROFILE = ("amr", "wall_s", "peak_rss_bytes", "forwards", "backwards")
_BEFORE = "before_s"  # what measuring, learning, searching or training took before the merge
_OF_ALL_TASKS = ("mean", "stderr", "spread")
_RELATIVE = ("normalised_score", "score_drop_rate")


def find(repo: Repo, text: str) -> Target | None:
    """Find an MLflow run by its id, or a cell of the report; raise InputError if the text nearly matches one."""
    return _of_run(repo, text) or _of_cell(repo, text)


def _of_run(repo: Repo, text: str) -> Target | None:
    if not _RUN_ID.fullmatch(text):
        return None
    receipts = {path: read_json(path) or {} for path in sorted(Path(repo.root_dir, RECORDS).glob("*.json"))}
    for key, stages in (("run_id", None), ("parent_run_id", ("report",))):
        for path, receipt in receipts.items():
            if receipt.get(key) == text:
                name = os.path.relpath(path, repo.root_dir)
                target = target_of_file(repo, str(path))
                return Target(text, stages or (target.stages if target else ()), () if stages else (name,))
    raise InputError(
        f"{text}: no receipt in {RECORDS} names this MLflow run; if it is of an earlier result, its tag "
        "mlflow.source.git.commit says at which commit: `git checkout COMMIT && dvc checkout` restores it"
    )


def _of_cell(repo: Repo, text: str) -> Target | None:
    entry, _, column = text.partition("/")
    if entry not in entries():
        if column and (offer := did_you_mean(entry, entries())):
            raise InputError(f"{text}: no entry is called {entry}{offer}")
        return None
    files = _files_of(repo, entry, column)
    if not files:
        columns = [*_tasks(repo, entry), *_OF_ALL_TASKS, *_RELATIVE, *_FROM_PROFILE, _BEFORE]
        raise InputError(
            f"{text}: no such column of {entry}{did_you_mean(column, columns)}; there are {', '.join(columns)}"
        )
    targets = [target for file in files if (target := target_of_file(repo, file))]
    stages = dict.fromkeys(stage for target in targets for stage in target.stages)
    return Target(text, tuple(stages), tuple(files), _cell(repo, entry, column or "mean"))


def _files_of(repo: Repo, entry: str, column: str) -> list[str]:
    """Return the files from which a cell of the report, or a whole row, is computed."""
    metrics = {task: f"{METRICS}/{entry}/{task}.json" for task in _tasks(repo, entry)}
    if column in metrics:
        return [metrics[column]]
    if column in _FROM_PROFILE:
        return [f"{MERGE_PROFILES}/{entry}.json"]
    if column in _OF_ALL_TASKS:
        return list(metrics.values())
    if column == _BEFORE:
        from merganser.report.rows import times_before  # loads PyTorch

        params = load_params(Path(repo.root_dir, PARAMS))
        files = times_before(params, params.methods[entry], Path(repo.root_dir, PROFILES))
        return [str(file.relative_to(repo.root_dir)) for file in files]
    if column in _RELATIVE:
        own = [name for name, one in entries().items() if one.get("method") == "individual"][:1]
        return [*metrics.values(), *(f"{METRICS}/{own[0]}/{task}.json" for task in metrics if own)]
    return [] if column else [f"{RECORDS}/{entry}.json"]


def _tasks(repo: Repo, entry: str) -> list[str]:
    """Return the tasks that an entry was evaluated on."""
    folder = f"{METRICS}/{entry}"
    outs = (out for stage in repo.index.stages for out in map(path_from_root, stage.outs))
    return [Path(out).stem for out in outs if os.path.dirname(out) == folder]


def entries() -> dict[str, Any]:
    """Return the entries of params.yaml, by name."""
    content = read_yaml(PARAMS)
    entries = content.get("methods") if isinstance(content, dict) else None
    return entries if isinstance(entries, dict) else {}


def _cell(repo: Repo, entry: str, column: str) -> Any:
    """Return a cell of the report's table."""
    with suppress(InputError):
        rows = read_table(Path(repo.root_dir), "results.csv")
        return next((row.get(column) for row in rows if row["entry"] == entry), None)
