"""Compare MLflow's records with receipts, metric files and the report. Imports MLflow and torch, so import it late."""

import logging
import os
import sqlite3
from collections.abc import Collection, Iterator, Mapping
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import Any

from mlflow import MlflowClient
from mlflow.entities import Run
from mlflow.exceptions import MlflowException
from sqlalchemy.exc import SQLAlchemyError

from dvcfleet.disk import overlap, read_json
from dvcfleet.errors import FailedError, some
from dvcfleet.lineage.contents import digest_of
from dvcfleet.lineage.steps import Finding, Lineage, LineageStep
from merganser.config import PARAMS
from merganser.config.loading import load_params
from merganser.errors import InputError
from merganser.flows.evidence.findings import DifferenceKind, steps_writing
from merganser.flows.evidence.lost_evidence import deleted_words
from merganser.flows.evidence.mlflow_records import (
    FINISHED,
    TRIAL,
    Records,
    Texts,
    artifacts_of,
    detail_differences,
    file_paths_in,
    is_elsewhere,
    metric_differences,
    rows_of,
    table_differences,
    text_differences,
)
from merganser.limits import read_yaml
from merganser.tasks.recorded import (
    COMMIT,
    COMPARISON,
    CONTENT,
    ENTRY,
    LOGGED_TABLES,
    MEAN,
    OBSERVED,
    PARENT,
    POINTS,
    PREFECT,
    REPORTED,
    RUN,
    STUDY,
    TABLE,
    Held,
    comparison_metrics,
    comparison_run,
    logged,
    relative_metrics,
    run_description,
    study_runs,
    summary_table,
)
from merganser.tasks.stages import RECORDS, REPORT
from merganser.tasks.store import Store, experiment_in
from merganser.tasks.tracking import STORE, store_words

# Numbers of an entry that follow from the whole comparison, besides those that begin with `unseen_`.
RELATIVE = ("normalised_score", "score_drop_rate", "sar_mean", "error_mean")
_NOTE = "mlflow.note.content"
_TABLES = ("experiments", "runs", "metrics", "latest_metrics", "params", "tags")  # MLflow would make one that is gone


def check_records(lineage: Lineage, findings: Collection[Finding]) -> list[Finding]:
    """Find MLflow runs that are missing or that differ from the files in the workspace.

    Runs in a Merganser project's folder. Receipts, and the report, are skipped if `findings` say that their files
    or parameters have changed. Raises FailedError if MLflow does not answer.
    """
    files = {name: _receipt_of(step) for name, step in lineage.steps.items() if not _is_touched(step, findings)}
    receipts = {name: file for name, file in files.items() if file}
    if not receipts:
        return []
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
    try:
        store = _known_store()
        if store is None:
            where = os.environ.get("MLFLOW_TRACKING_URI") or STORE
            return [
                Finding(
                    DifferenceKind.NO_MLFLOW_RUN,
                    str(where),
                    f"there is no store with the runs of {len(receipts)} receipts",
                )
            ]
        step = next(steps_writing(lineage, REPORT), None)
        whole = step.stage if step and not _is_touched(step, findings) else None
        return list(_Audit(store, load_params(), lineage, receipts, whole).findings())
    except (MlflowException, SQLAlchemyError, sqlite3.Error) as error:
        raise FailedError(store_words(error)) from error


def _receipt_of(step: LineageStep) -> Path | None:
    files = (Path(item.path) for item in step.outputs)
    return next((file for file in files if file.parent == RECORDS and file.is_file()), None)


def _is_touched(step: LineageStep, findings: Collection[Finding]) -> bool:
    paths = [item.path for item in (*step.inputs, *step.outputs)]
    return any(step.stage in one.stages or any(overlap(one.name, path) for path in paths) for one in findings)


def _known_store() -> Store | None:
    """Open the existing MLflow store for reading; None if nothing was recorded."""
    logging.getLogger("mlflow").setLevel(logging.CRITICAL)  # its tracebacks of what is said here in a line
    uri = os.environ.get("MLFLOW_TRACKING_URI")
    if not uri:
        if not STORE.exists() or not STORE.stat().st_size:
            return None
        with closing(sqlite3.connect(f"{STORE.absolute().as_uri()}?mode=ro", uri=True)) as store:
            for table in _TABLES:
                store.execute(f"SELECT 1 FROM {table} LIMIT 1")
    client = MlflowClient(uri or f"sqlite:///{STORE.absolute()}")
    known = experiment_in(client)
    return Store(client, known) if known else None


class _Audit(Records):
    """The audit of a store."""

    def findings(self) -> Iterator[Finding]:
        if self._experiment.lifecycle_stage != "active":
            words = deleted_words(self._experiment.name, self.store.experiment)
            yield Finding(DifferenceKind.NO_MLFLOW_RUN, "all runs", words, tuple(self.receipts))
            return
        for stage, file in self.receipts.items():
            yield from self._entry(stage, file.stem)
        yield from self._strangers()
        for parent in self._parents:
            yield from self._means(parent)
        if self.report:
            yield from self._report(self.report)

    def _entry(self, stage: str, entry: str) -> Iterator[Finding]:
        receipt, held = self._noted[entry], self._held[entry]
        run_id, file = str(receipt.get("run_id")), str(RECORDS / f"{entry}.json")
        run = self._run(run_id)
        lack = self._lack_of(run)
        if run is None or lack:
            yield Finding(DifferenceKind.NO_MLFLOW_RUN, file, f"names MLflow run {run_id}, which {lack}", (stage,))
            return
        if receipt.get("content") != held.tags[CONTENT]:
            message = f"is the receipt of another result than that of {entry} here"
            yield Finding(DifferenceKind.MLFLOW, file, message, (stage,))
        origin = {PARENT: receipt.get("parent_run_id"), RUN: receipt.get("run"), COMMIT: receipt.get("commit")}
        tags = {**held.tags, **{name: value for name, value in origin.items() if value is not None}}
        words = [
            *text_differences(run, Texts(held.name, tags, held.params, {TRIAL})),
            *detail_differences(run, [receipt]),
            *self._result(run, entry, receipt.get("observed") or {}),
        ]
        yield from (Finding(DifferenceKind.MLFLOW, f"run {run_id}", each, (stage,)) for each in words)

    def _result(self, run: Run, entry: str, observed: Mapping[str, float]) -> Iterator[str]:
        """Compare a run's numbers, curves and artifacts with an entry's files."""
        yield from self._numbers(run, entry, observed)
        yield from self._curves(run, self._held[entry])
        yield from self._place(run)
        if (folder := artifacts_of(run)) and (more := sorted(map(str, file_paths_in(folder)))):
            yield f"artifact {some(more)} is none that `record` writes"

    def _place(self, run: Run) -> Iterator[str]:
        """Compare where a run's artifacts are with where those of all runs are; a server has its own place for them."""
        place = f"{self._experiment.artifact_location}/{run.info.run_id}/artifacts"
        if not is_elsewhere() and run.info.artifact_uri != place:
            yield f"its artifacts are to be at {place}, not at {run.info.artifact_uri}"

    def _numbers(self, run: Run, entry: str, observed: Mapping[str, float]) -> Iterator[str]:
        """Compare a run's numbers: those in files, and those that were observed."""
        held = self._held[entry]
        scores = dict(held.metrics)
        rate = {"amr": scores.pop("amr")}  # not of the scores' content: a later version may have logged another
        for name, value in scores.items():
            logged = self._logged(run, name)
            if logged != {(0, value)}:
                logged_values = ", ".join(repr(each) for _, each in sorted(logged)) or "nothing"
                yield f"{name} is {logged_values}, the metric files of {entry} say {value!r}"
        for name, value in observed.items():
            if self._logged(run, name) != {(0, value)}:
                yield f"{name} is {run.data.metrics.get(name)!r}, observed was {value!r}"
        relative = relative_metrics(self._scores[entry], entry) if self.report else {}
        for name, value in (rate | relative).items():
            now = run.data.metrics.get(name)
            values = {value for _, value in self._logged(run, name)}
            if value not in values or not (now == value or self._is_of_another(run, entry, name, now)):
                yield f"{name} is {now!r}, the files of {entry} say {value!r}"
        known = {*held.metrics, *held.curves, *OBSERVED, *relative}
        more = [name for name in sorted(run.data.metrics.keys() - known) if not self._may_be(run, entry, name)]
        if more:
            yield f"metric {some(more)} is none that `record` writes"

    def _may_be(self, run: Run, entry: str, name: str) -> bool:
        """Tell whether a number may follow from a whole comparison that is not compared here."""
        is_relative = name in RELATIVE or name.startswith("unseen_")
        return is_relative and (not self.report or len(self._parents_of(run, entry)) > 1)

    def _is_of_another(self, run: Run, entry: str, name: str, value: float | None) -> bool:
        """Tell whether another comparison with the same run, such as a trial, logged a number to it."""
        return any(rows_of(each).get(entry, {}).get(name, self) == value for each in self._parents_of(run, entry))

    def _curves(self, run: Run, held: Held) -> Iterator[str]:
        for name, curve in held.curves.items():
            logged = self._logged(run, name)
            differing = sorted({*logged} ^ {(step, float(value)) for step, value in curve})
            if differing:
                yield f"the curve {name} is not that of the profile of {held.name}, first at step {differing[0][0]}"

    def _strangers(self) -> Iterator[Finding]:
        """Find finished runs that look like results of this comparison but are in no receipt."""
        known = {receipt.get("run_id") for receipt in self._noted.values()}
        stages = {file.stem: stage for stage, file in self.receipts.items()}
        earlier = cache(self._earlier_receipts)
        for run in self._runs:
            tags, run_id = run.data.tags, run.info.run_id
            if run_id in known or tags.get(COMPARISON) or tags.get(STUDY) or run.info.status != FINISHED:
                continue
            entry, name = tags.get(ENTRY), f"run {run_id}"
            if entry is None or tags.get(CONTENT) is None:
                yield Finding(DifferenceKind.MLFLOW, name, "no result that `record` wrote; delete it in MLflow")
            elif entry in stages and tags[CONTENT] == self._held[entry].tags[CONTENT]:
                words = [*self._copied(run, entry), *self._result(run, entry, {})]
                message = f"a second run of this result of {entry}: "
                yield from (Finding(DifferenceKind.MLFLOW, name, message + each, (stages[entry],)) for each in words)
            elif entry in stages and self._is_here(tags.get(PARENT), entry) and run_id not in earlier():
                message = f"a second result of {entry} in {tags.get(RUN)}, which no receipt names; delete it in MLflow"
                yield Finding(DifferenceKind.MLFLOW, name, message, (stages[entry],))

    def _copied(self, run: Run, entry: str) -> Iterator[str]:
        """Compare the texts of a second run of a result, which another comparison may be recording."""
        held = self._held[entry]
        yield from text_differences(run, Texts(held.name, held.tags, held.params, {TRIAL, PARENT, RUN, COMMIT}))

    def _means(self, parent: Run) -> Iterator[Finding]:
        """Compare the entries' scores in the comparison's table with those of their own runs."""
        rows = rows_of(parent)
        for stage, file in self.receipts.items():
            row = rows.get(file.stem)
            if row is None or parent.data.tags.get(f"{ENTRY}.{file.stem}") != self._noted[file.stem].get("run_id"):
                continue
            held = self._held[file.stem].metrics
            for name, value in {MEAN: held[MEAN], "stderr": held.get(f"{MEAN}_stderr")}.items():
                if row.get(name) != value:
                    message = f"{name} of {file.stem} in {TABLE} is {row.get(name)!r}, the metric files say {value!r}"
                    yield Finding(DifferenceKind.MLFLOW, f"run {parent.info.run_id}", message, (stage,))

    def _report(self, stage: str) -> Iterator[Finding]:
        """Compare the runs of this report with it: table, description, parameters and files."""
        parents = [each for each in self._parents if each.data.tags.get(REPORTED) == self._digest]
        if not parents:
            message = f"MLflow has no run with it: `merganser run --force {stage}` records it"
            yield Finding(DifferenceKind.NO_MLFLOW_RUN, str(REPORT), message, (stage,))
        for parent in parents:
            words = [*self._comparison(parent), *self._described(parent)]
            yield from (Finding(DifferenceKind.MLFLOW, f"run {parent.info.run_id}", each, (stage,)) for each in words)
            yield from self._files(parent, stage)
            yield from self._studies(parent, stage)

    def _studies(self, parent: Run, stage: str) -> Iterator[Finding]:
        """Compare the runs of a comparison's studies with the report's; earlier versions wrote none."""
        name = str(parent.data.tags[COMPARISON])
        expected = study_runs(name, read_json(REPORT / "studies.json") or {})
        for run in self._runs:
            study = run.data.tags.get(STUDY)
            if study is None or run.data.tags.get(PARENT) != parent.info.run_id or run.info.status != FINISHED:
                continue
            if study not in expected:
                words = ["no study of the report"]
            else:
                held, table = expected[study]
                tags = {**held.tags, PARENT: parent.info.run_id}
                words = [*text_differences(run, Texts(held.name, tags, held.params, {COMMIT}))]
                words += [
                    f"{metric} is not the study's curve"
                    for metric in run.data.metrics.keys() | held.curves.keys()
                    if self._logged(run, metric) != set(held.curves.get(metric, ()))
                ]
                folder = artifacts_of(run)
                words += [f"{POINTS} is not its points"] if folder and read_json(folder / POINTS) != table else []
            yield from (Finding(DifferenceKind.MLFLOW, f"run {run.info.run_id}", each, (stage,)) for each in words)

    def _comparison(self, parent: Run) -> Iterator[str]:
        """Compare the texts, details and numbers of the run of a comparison."""
        name = str(parent.data.tags[COMPARISON])
        held = comparison_run(self.params, name)
        entries = {f"{ENTRY}.{entry}": str(receipt.get("run_id")) for entry, receipt in self._noted.items()}
        tags = {**held.tags, **entries, REPORTED: self._digest, LOGGED_TABLES: logged(TABLE)}
        yield from text_differences(parent, Texts(held.name, tags, held.params, {COMMIT, PREFECT, _NOTE}))
        yield from detail_differences(parent, list(self._noted.values()))
        yield from metric_differences(parent, comparison_metrics(self._scores))
        ran = [one for several in self.lineage.executions.values() for one in several if one.run == name]
        flow_runs = {one.flow_run for one in ran}
        if all(one.stage == str(REPORT) for one in ran):  # when it was recorded, the ledger had no line of this run
            flow_runs.add(None)
        for tag, values in {COMMIT: {one.commit for one in ran}, PREFECT: flow_runs}.items():
            if ran and parent.data.tags.get(tag) not in values:
                yield f"tag {tag} is {parent.data.tags.get(tag)!r}, the ledger says {some(sorted(map(repr, values)))}"

    def _described(self, parent: Run) -> Iterator[str]:
        texts = {run_description(self._scores, flow_run) for flow_run in (parent.data.tags.get(PREFECT), None)}
        if parent.data.tags.get(_NOTE) not in texts:
            yield "its description is not the table of these scores"
        yield from self._place(parent)
        if artifacts_of(parent):
            yield from table_differences(parent, summary_table(self._scores), (MEAN, "stderr"))

    def _files(self, parent: Run, stage: str) -> Iterator[Finding]:
        """Compare files with MLflow's copies. Those of a tracking server are not read."""
        folder = artifacts_of(parent)
        if folder is None:
            return
        files = {REPORT / path for path in file_paths_in(REPORT)} | file_paths_in(folder) - {Path(TABLE), PARAMS}
        for path in sorted(files):
            if digest_of(folder / path, "sha256") != digest_of(path, "sha256") or not path.is_relative_to(REPORT):
                name = os.path.relpath(folder / path)
                yield Finding(DifferenceKind.MLFLOW, name, "not the report's file; remove it, run again", (stage,))
        copy = folder / PARAMS
        if _parameters(copy) != _parameters(PARAMS):
            name = os.path.relpath(copy)
            message = f"not the comparison's parameters: `merganser run --force {stage}` records them again"
            yield Finding(DifferenceKind.MLFLOW, name, message, (stage,))


def _parameters(path: Path) -> Any:
    try:
        return read_yaml(path)
    except InputError:
        return None
