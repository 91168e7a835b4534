"""Compare what MLflow holds with receipts, metric files and the report, by the table of what `record` writes.

Imports MLflow and torch, so import it late.
"""

import os
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import Any

from mlflow import MlflowClient
from mlflow.entities import Run
from mlflow.exceptions import MlflowException
from sqlalchemy.exc import SQLAlchemyError

from dvcfleet.disk import read_json
from dvcfleet.errors import FailedError
from dvcfleet.lineage.contents import digest_of
from dvcfleet.lineage.findings import Finding
from dvcfleet.lineage.steps import Lineage, Step
from dvcfleet.paths import overlap
from flows.lost_evidence import local_folder
from merganser.config.loading import PARAMS, load_params
from merganser.config.params import Params
from merganser.errors import InputError
from merganser.hashes import sha256_of_tree
from merganser.limits import read_yaml
from merganser.report.scores import Scores, read_scores
from tasks.record import EXPERIMENT, Store
from tasks.recorded import (
    COMMIT,
    COMPARISON,
    CONTENT,
    ENTRY,
    MEAN,
    PARENT,
    REPORTED,
    RUN,
    TABLE,
    Held,
    comparison_run,
    described,
    entry_run,
    relative_metrics,
    summary_table,
)
from tasks.stages import MERGE_PROFILES, METRICS, RECORDS, REPORT, UNSEEN
from tasks.tracking import STORE, store_words

_RELATIVE = ("normalised_score", "score_drop_rate", "amr")  # columns that do not follow from an entry's scores alone
_NOTE = "mlflow.note.content"


class MlflowKind(StrEnum):
    """The kinds of differences from what MLflow holds."""

    DIFFERS = "MLflow differs"
    NO_RUN = "no MLflow run"


def check_records(lineage: Lineage, found: Collection[Finding]) -> list[Finding]:
    """Find MLflow runs that are missing, or that hold something else than the files in the workspace say.

    Runs in a Merganser project's folder. Receipts are skipped if `found` says that they, their metric files or their
    parameters have changed, and so is the report. Raises FailedError if MLflow does not answer.
    """
    files = {name: _receipt_of(step) for name, step in lineage.steps.items() if not _is_touched(step, found)}
    receipts = {name: file for name, file in files.items() if file}
    if not receipts:
        return []
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
    try:
        store = _known_store()
        if store is None:
            where = os.environ.get("MLFLOW_TRACKING_URI") or STORE
            return [
                Finding(MlflowKind.NO_RUN, str(where), f"there is no store with the runs of {len(receipts)} receipts")
            ]
        steps = [step for step in lineage.steps.values() if any(item.path == str(REPORT) for item in step.outputs)]
        whole = steps[0].stage if steps and not _is_touched(steps[0], found) else None
        return list(_Audit(store, load_params(), receipts, whole).findings())
    except (MlflowException, SQLAlchemyError) as error:
        raise FailedError(store_words(error)) from error


def _receipt_of(step: Step) -> Path | None:
    files = (Path(item.path) for item in step.outputs)
    return next((file for file in files if file.parent == RECORDS and file.is_file()), None)


def _is_touched(step: Step, found: Collection[Finding]) -> bool:
    paths = [item.path for item in (*step.inputs, *step.outputs)]
    return any(step.stage in one.stages or any(overlap(one.name, path) for path in paths) for one in found)


def _known_store() -> Store | None:
    """Open the existing MLflow store for reading; None if nothing was recorded."""
    uri = os.environ.get("MLFLOW_TRACKING_URI")
    if not uri and not STORE.exists():
        return None
    client = MlflowClient(uri or f"sqlite:///{STORE.absolute()}")
    experiment = client.get_experiment_by_name(EXPERIMENT)
    return Store(client, experiment.experiment_id) if experiment else None


@dataclass(frozen=True)
class _Audit:
    """An audit of a store: `receipts` by their stages, `report` the stage whose report is compared, if it is."""

    store: Store
    params: Params
    receipts: Mapping[str, Path]
    report: str | None

    def findings(self) -> Iterator[Finding]:
        for stage, file in self.receipts.items():
            yield from self._entry(stage, file.stem)
        for parent in self._parents:
            yield from self._means(parent)
        if self.report:
            yield from self._report(self.report)

    @cached_property
    def _noted(self) -> dict[str, dict[str, Any]]:
        """The receipts, by entry."""
        return {file.stem: read_json(file) or {} for file in self.receipts.values()}

    @cached_property
    def _held(self) -> dict[str, Held]:
        return {entry: entry_run(self.params, entry) for entry in self._noted}

    @cached_property
    def _parents(self) -> list[Run]:
        return list(self.store.client.search_runs([self.store.experiment], f"tags.`{COMPARISON}` != ''"))

    @cached_property
    def _scores(self) -> dict[str, Scores]:
        """Of all entries: read where the report is compared, whose inputs are then as recorded."""
        return read_scores(self.params, METRICS, MERGE_PROFILES, UNSEEN)

    def _entry(self, stage: str, entry: str) -> Iterator[Finding]:
        receipt, held = self._noted[entry], self._held[entry]
        run_id, file = str(receipt.get("run_id")), str(RECORDS / f"{entry}.json")
        run = self._run(run_id)
        if run is None or run.info.lifecycle_stage != "active":
            state = "is deleted" if run else "is not there"
            message = f"names MLflow run {run_id}, which {state}; run again"
            yield Finding(MlflowKind.NO_RUN, file, message, (stage,))
            return
        if receipt.get("content") != held.tags[CONTENT]:
            message = f"is the receipt of another result than that of {entry} here"
            yield Finding(MlflowKind.DIFFERS, file, message, (stage,))
        origin = {PARENT: receipt.get("parent_run_id"), RUN: receipt.get("run"), COMMIT: receipt.get("commit")}
        tags = {**held.tags, **{name: value for name, value in origin.items() if value is not None}}
        words = [*_texts(run, held.name, tags, held.params), *self._numbers(run, entry), *self._curves(run, held)]
        yield from (Finding(MlflowKind.DIFFERS, f"run {run_id}", each, (stage,)) for each in words)

    def _numbers(self, run: Run, entry: str) -> Iterator[str]:
        """Compare a run's numbers: those that files say, and those that its receipt says were observed."""
        scores = dict(self._held[entry].metrics)
        rate = {"amr": scores.pop("amr")}  # not of the scores' content: a later version may have logged another
        for name, value in scores.items():
            logged = {value for _, value in self._logged(run, name)}
            if logged != {value}:
                found = ", ".join(map(repr, sorted(logged))) or "nothing"
                yield f"{name} is {found}, the metric files of {entry} say {value!r}"
        for name, value in (self._noted[entry].get("observed") or {}).items():
            if {each for _, each in self._logged(run, name)} != {value}:
                yield f"{name} is {run.data.metrics.get(name)!r}, observed was {value!r}"
        relative = relative_metrics(self._scores[entry], entry) if self.report else {}
        for name, value in (rate | relative).items():
            now = run.data.metrics.get(name)
            logged = {value for _, value in self._logged(run, name)}
            if value not in logged or not (now == value or self._is_of_another(run, entry, name, now)):
                yield f"{name} is {now!r}, the files of {entry} say {value!r}"

    def _is_of_another(self, run: Run, entry: str, name: str, value: float | None) -> bool:
        """Tell whether a comparison beside this one, such as a trial, that has the same run logged a number to it."""
        parents = [each for each in self._parents if each.data.tags.get(f"{ENTRY}.{entry}") == run.info.run_id]
        return any(_rows(each).get(entry, {}).get(name, self) == value for each in parents)

    def _curves(self, run: Run, held: Held) -> Iterator[str]:
        for name, curve in held.curves.items():
            logged = self._logged(run, name)
            differing = sorted({*logged} ^ {(step, float(value)) for step, value in curve})
            if differing:
                yield f"the curve {name} is not that of the profile of {held.name}, first at step {differing[0][0]}"

    def _logged(self, run: Run, name: str) -> set[tuple[int, float]]:
        """Return all steps and values of a metric, with the one that MLflow shows."""
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

    def _means(self, parent: Run) -> Iterator[Finding]:
        """Compare the entries' scores in the table of a comparison's run with those of the entries' runs."""
        rows = _rows(parent)
        for stage, file in self.receipts.items():
            row = rows.get(file.stem)
            if row is None or parent.data.tags.get(f"{ENTRY}.{file.stem}") != self._noted[file.stem].get("run_id"):
                continue
            held = self._held[file.stem].metrics
            for name, value in {MEAN: held[MEAN], "stderr": held.get(f"{MEAN}_stderr")}.items():
                if row.get(name) != value:
                    message = f"{name} of {file.stem} in {TABLE} is {row.get(name)!r}, the metric files say {value!r}"
                    yield Finding(MlflowKind.DIFFERS, f"run {parent.info.run_id}", message, (stage,))

    def _report(self, stage: str) -> Iterator[Finding]:
        """Compare the runs that have this report with it: table, description, parameters and files."""
        digest = sha256_of_tree(REPORT)
        parents = [each for each in self._parents if each.data.tags.get(REPORTED) == digest]
        if not parents:
            message = f"MLflow has no run with it: `merganser run --force {stage}` records it"
            yield Finding(MlflowKind.NO_RUN, str(REPORT), message, (stage,))
        for parent in parents:
            name = str(parent.data.tags[COMPARISON])
            held = comparison_run(self.params, name)
            entries = {f"{ENTRY}.{entry}": str(receipt.get("run_id")) for entry, receipt in self._noted.items()}
            words = [*_texts(parent, held.name, {**held.tags, **entries}, held.params), *self._described(parent)]
            yield from (Finding(MlflowKind.DIFFERS, f"run {parent.info.run_id}", each, (stage,)) for each in words)
            yield from self._files(parent, stage)

    def _described(self, parent: Run) -> Iterator[str]:
        if not str(parent.data.tags.get(_NOTE, "")).startswith(described(self._scores)):
            yield "its description is not the table of these scores"
        folder = _artifacts(parent)
        if folder is None:
            return
        rows, expected = _rows(parent), _by_entry(summary_table(self._scores))
        if rows.keys() != expected.keys():
            yield f"{TABLE} has the entries {', '.join(rows)}, not {', '.join(expected)}"
            return
        for entry, row in expected.items():
            for name, value in row.items():
                known = name in (MEAN, "stderr")  # compared with each entry's run
                if not known and rows[entry].get(name) != value:
                    yield f"{name} of {entry} in {TABLE} is {rows[entry].get(name)!r}, the files say {value!r}"

    def _files(self, parent: Run, stage: str) -> Iterator[Finding]:
        """Compare files with MLflow's copies.

        Copies elsewhere than in this folder are not read: they are a server's, or those of a folder that was moved.
        """
        folder = _artifacts(parent)
        if folder is None:
            return
        files = {REPORT / path for root in (REPORT, folder / REPORT) for path in _names(root)}
        for path in sorted(files):
            if digest_of(folder / path, "sha256") != digest_of(path, "sha256"):
                name = os.path.relpath(folder / path)
                yield Finding(MlflowKind.DIFFERS, name, "not the report's file; remove it, run again", (stage,))
        copy = folder / PARAMS
        if _parameters(copy) != _parameters(PARAMS):
            name = os.path.relpath(copy)
            message = f"not the comparison's parameters: `merganser run --force {stage}` records them again"
            yield Finding(MlflowKind.DIFFERS, name, message, (stage,))


def _texts(run: Run, name: str, tags: Mapping[str, str], params: Mapping[str, str]) -> Iterator[str]:
    """Compare a run's name, tags and parameters."""
    if run.info.run_name != name:
        yield f"its name is {run.info.run_name!r}, not {name!r}"
    # MLflow cannot delete parameters, so a missing one is a default that is newer than the run.
    given = {key: run.data.params.get(key, text) for key, text in params.items()}
    for what, holds, should in (("parameter", given, params), ("tag", run.data.tags, tags)):
        for key, text in should.items():
            if holds.get(key) != text:
                yield f"{what} {key} is {holds.get(key)!r}, not {text!r}"


def _artifacts(run: Run) -> Path | None:
    """Return the folder of a run's artifacts; None if it is elsewhere than in this folder."""
    folder = local_folder(str(run.info.artifact_uri))
    return folder if folder and folder.is_relative_to(Path.cwd()) else None


def _parameters(path: Path) -> Any:
    try:
        return read_yaml(path)
    except InputError:
        return None


def _names(folder: Path) -> set[Path]:
    return {path.relative_to(folder) for path in folder.rglob("*") if path.is_file()}


def _rows(parent: Run) -> dict[str, dict[str, Any]]:
    """Return the rows of the table of a comparison's run, by entry; none if it is a server's, or elsewhere."""
    folder = _artifacts(parent)
    table = read_json(folder / TABLE) if folder else None
    return _by_entry(table) if table else {}


def _by_entry(table: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    rows = [dict(zip(table["columns"], row, strict=True)) for row in table["data"]]
    return {row["entry"]: row for row in rows}
