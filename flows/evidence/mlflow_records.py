"""MLflow's records of a comparison, and how a run differs from them. Imports MLflow and torch, so import it late."""

import os
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from mlflow.entities import Experiment, Run
from mlflow.exceptions import MlflowException

from dvcfleet.disk import read_json
from dvcfleet.errors import some
from dvcfleet.lineage.steps import Lineage
from merganser.config.params import Params
from merganser.flows.evidence.lost_evidence import local_folder
from merganser.hashes import sha256_of_tree
from merganser.report.scores import Scores, read_scores
from merganser.tasks.recorded import COMPARISON, ENTRY, REPORTED, SOURCE, TABLE, USER, Held, entry_run, run_details
from merganser.tasks.stages import MERGE_PROFILES, METRICS, REPORT, UNSEEN
from merganser.tasks.store import Store
from merganser.tasks.tracking import ARTIFACTS

_MOST_BYTES = 10_000  # of a receipt


@dataclass(frozen=True)
class Records:
    """A store, and receipts by stage; `report`: the stage whose report is compared, or None."""

    store: Store
    params: Params
    lineage: Lineage
    receipts: Mapping[str, Path]
    report: str | None

    @cached_property
    def _noted(self) -> dict[str, dict[str, Any]]:
        """The receipts, by entry."""
        return {file.stem: read_json(file) or {} for file in self.receipts.values()}

    @cached_property
    def _held(self) -> dict[str, Held]:
        return {entry: entry_run(self.params, entry) for entry in self._noted}

    @cached_property
    def _runs(self) -> list[Run]:
        """All runs that are not deleted."""
        runs_read, page = list[Run](), None
        while page is None or page:
            runs = self.store.client.search_runs([self.store.experiment], page_token=page)
            page = runs.token or ""
            runs_read += runs
        return runs_read

    @cached_property
    def _parents(self) -> list[Run]:
        return [run for run in self._runs if run.data.tags.get(COMPARISON)]

    @cached_property
    def _scores(self) -> dict[str, Scores]:
        """The scores of all entries; read if the report is compared, since its inputs are then as recorded."""
        return read_scores(self.params, METRICS, MERGE_PROFILES, UNSEEN)

    @cached_property
    def _digest(self) -> str:
        return sha256_of_tree(REPORT) if REPORT.is_dir() else ""

    @cached_property
    def _experiment(self) -> Experiment:
        return self.store.client.get_experiment(self.store.experiment)

    def _parents_of(self, run: Run, entry: str) -> list[Run]:
        return [each for each in self._parents if each.data.tags.get(f"{ENTRY}.{entry}") == run.info.run_id]

    def _logged(self, run: Run, name: str) -> set[tuple[int, float]]:
        """Return all steps and values of a metric, and the value that MLflow shows."""
        history = self.store.client.get_metric_history(run.info.run_id, name)
        logged = {(metric.step, metric.value) for metric in history}
        last = max((metric.step for metric in history), default=0)
        return logged | ({(last, run.data.metrics[name])} if name in run.data.metrics else set())

    def _run(self, run_id: str) -> Run | None:
        try:
            return self.store.client.get_run(run_id)
        except MlflowException as error:
            if error.error_code in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"):
                return None
            raise

    def _lack_of(self, run: Run | None) -> str | None:
        """Return what is wrong with the place of a receipt's run; None if it is in the comparison's experiment."""
        if run is None or run.info.lifecycle_stage != "active":
            return f"is {'deleted' if run else 'not there'}; run again"
        is_here = run.info.experiment_id == self.store.experiment
        return None if is_here else "is in another experiment; delete it there, and run again"

    def _is_here(self, parent: str | None, entry: str) -> bool:
        """Tell whether a comparison's run has recorded an entry, or has this report."""
        of_report = [each.info.run_id for each in self._parents if each.data.tags.get(REPORTED) == self._digest]
        return parent is not None and parent in (self._noted[entry].get("parent_run_id"), *of_report)

    def _earlier_receipts(self) -> set[str]:
        """Return the runs of receipts in DVC's cache, also of a run that continued with other parameters."""
        run_ids = set()
        for stage in self.receipts:
            for out in self.lineage.stages[stage].outs:
                for path in Path(out.cache.path).glob("??/" + "?" * 30):
                    if path.stat().st_size < _MOST_BYTES and (receipt := read_json(path)):
                        run_ids.add(str(receipt.get("run_id")))
            break
        return run_ids


def is_elsewhere() -> bool:
    """Tell whether MLflow is on a server, whose artifacts are not compared."""
    return bool(os.environ.get("MLFLOW_TRACKING_URI"))


NAME, TRIAL = "mlflow.runName", "merganser.trial"
FINISHED = "FINISHED"


@dataclass(frozen=True)
class Texts:
    """The expected name, tags and parameters of a run; `free`: tags that may be missing or differ."""

    name: str
    tags: Mapping[str, str]
    params: Mapping[str, str]
    free: Collection[str] = field(default=())


def text_differences(run: Run, expected: Texts) -> Iterator[str]:
    """Compare a run's name, tags and parameters with the expected ones; others are differences too."""
    if run.info.run_name != expected.name:
        yield f"its name is {run.info.run_name!r}, not {expected.name!r}"
    free = (NAME, USER, *SOURCE, *expected.free)
    tags = {key: text for key, text in run.data.tags.items() if key not in free}
    for key, text in (SOURCE | {USER: run.info.user_id}).items():  # earlier versions wrote none of them
        if run.data.tags.get(key, text) != text:
            yield f"tag {key} is {run.data.tags[key]!r}, not {text!r}"
    for what, holds, should in (("parameter", run.data.params, expected.params), ("tag", tags, expected.tags)):
        if lost := sorted(should.keys() - holds.keys()):
            yield f"{what} {some(lost)} is not there any more"
        if more := sorted(holds.keys() - should.keys()):
            yield f"{what} {some(more)} is none that `record` writes"
        for key in sorted(should.keys() & holds.keys()):
            if holds[key] != should[key]:
                yield f"{what} {key} is {holds[key]!r}, not {should[key]!r}"


def metric_differences(run: Run, expected: Mapping[str, float]) -> Iterator[str]:
    """Compare the numbers of a comparison's run; a run of an earlier version may have none of them."""
    logged = run.data.metrics
    if more := sorted(logged.keys() - expected.keys()):
        yield f"metric {some(more)} is none that `record` writes"
    for name, value in expected.items() if logged else ():
        if logged.get(name) != value:
            yield f"{name} is {logged.get(name)!r}, the metric files say {value!r}"


def detail_differences(run: Run, receipts: Collection[Mapping[str, Any]]) -> Iterator[str]:
    """Compare a run's status, times and user with its receipts; receipts of older versions have none."""
    now = run_details(run.info)
    if now["status"] != FINISHED:
        yield f"its status is {now['status']}, not {FINISHED}"
    noted = [details for each in receipts if (details := (each.get("details") or {}).get(run.info.run_id))]
    for name in ("start_time", "end_time", "user_id"):
        if values := {each.get(name) for each in noted} - {now[name]}:
            yield f"its {name} is {now[name]!r}, receipts say {some(sorted(map(repr, values)))}"


def artifacts_of(run: Run) -> Path | None:
    """Return the folder of a run's artifacts; None if a server has them.

    In a moved or copied project, the store has the old place until a run, `merganser gc` or `merganser ui` corrects
    it.
    """
    place = local_folder(str(run.info.artifact_uri))
    if place is None or is_elsewhere():
        return place
    is_named_here = place.parts[-3:-2] == (ARTIFACTS.name,)
    return ARTIFACTS.joinpath(*place.parts[-2:]) if is_named_here or not place.parent.parent.is_dir() else place


def file_paths_in(folder: Path) -> set[Path]:
    """Return the paths of the files in a folder."""
    return {path.relative_to(folder) for path in folder.rglob("*") if not path.is_dir()}


def rows_of(parent: Run) -> dict[str, dict[str, Any]]:
    """Return the table of a comparison's run by entry; empty if it is on a server, or damaged."""
    folder = artifacts_of(parent)
    table = read_json(folder / TABLE) if folder else None
    try:
        return rows_by_entry(table) if table else {}
    except (KeyError, TypeError, ValueError):
        return {}


def rows_by_entry(table: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return a table's rows by entry."""
    rows = [dict(zip(table["columns"], row, strict=True)) for row in table["data"]]
    return {row["entry"]: row for row in rows}


def table_differences(parent: Run, expected: Mapping[str, Any], known: Collection[str]) -> Iterator[str]:
    """Compare the table of a comparison's run; `known`: columns that are compared with each entry's run."""
    folder = artifacts_of(parent)
    table, rows, should = read_json(folder / TABLE) if folder else None, rows_of(parent), rows_by_entry(expected)
    if rows.keys() != should.keys():
        yield f"{TABLE} has the entries {', '.join(rows) or 'of no table'}, not {', '.join(should)}"
        return
    for entry, row in should.items():
        for name, value in row.items():
            if name not in known and rows[entry].get(name) != value:
                yield f"{name} of {entry} in {TABLE} is {rows[entry].get(name)!r}, the files say {value!r}"
    if table and (table.get("columns") != expected["columns"] or len(table["data"]) != len(should)):
        yield f"{TABLE} has other columns or rows than `record` writes"
