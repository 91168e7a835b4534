"""Compare receipts and metric files with what MLflow holds. Imports MLflow and torch, so import it late."""

import os
from collections.abc import Collection, Iterator
from enum import StrEnum
from pathlib import Path

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
from merganser.config.loading import load_params
from merganser.config.params import Params
from tasks.record import (
    COMPARISON,
    ENTRY,
    EXPERIMENT,
    MEAN,
    RECORDS,
    TABLE,
    Store,
    content_key,
    content_tags,
    parameters,
    score_hashes,
    score_metrics,
)
from tasks.stages import REPORT
from tasks.tracking import STORE, store_words


class MlflowKind(StrEnum):
    """The kinds of differences from what MLflow holds."""

    DIFFERS = "MLflow differs"
    NO_RUN = "no MLflow run"


def check_records(lineage: Lineage, found: Collection[Finding]) -> list[Finding]:
    """Find MLflow runs that are missing, or that differ from the metric files and parameters in the workspace.

    Runs in a Merganser project's folder. Receipts are skipped if `found` says that they, their metric files or their
    parameters have changed. Raises FailedError if MLflow does not answer.
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
        params = load_params()
        findings = [one for stage, file in receipts.items() for one in _check_receipt(store, params, stage, file)]
        findings += _check_summaries(store, params, receipts)
        return [*findings, *_check_report(store, receipts, lineage, found)]
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


def _check_receipt(store: Store, params: Params, stage: str, file: Path) -> Iterator[Finding]:
    receipt = read_json(file) or {}
    entry, run_id = file.stem, str(receipt.get("run_id"))

    def differs(kind: MlflowKind, name: str, message: str) -> Finding:
        return Finding(kind, name, message, (stage,))

    run = _run(store, run_id)
    if run is None or run.info.lifecycle_stage != "active":
        state = "is deleted" if run else "is not there"
        yield differs(MlflowKind.NO_RUN, str(file), f"names MLflow run {run_id}, which {state}; run again")
        return
    hashes = score_hashes(params, entry)
    expected = content_key(params, entry, hashes)
    if receipt.get("content") != expected:
        yield differs(MlflowKind.DIFFERS, str(file), f"is the receipt of another result than that of {entry} here")
    for name, value in score_metrics(params, entry).items():
        logged = {metric.value for metric in store.client.get_metric_history(run_id, name)}
        logged |= {run.data.metrics[name]} if name in run.data.metrics else set()
        if logged != {value}:
            found = ", ".join(map(repr, sorted(logged))) or "nothing"
            yield differs(
                MlflowKind.DIFFERS, f"run {run_id}", f"{name} is {found}, the metric files of {entry} say {value!r}"
            )
    texts = {name: str(value) for name, value in parameters(params, entry).items()}
    for what, holds, should in (
        ("parameter", run.data.params, texts),
        ("tag", run.data.tags, content_tags(entry, expected, hashes)),
    ):
        for name, text in should.items():
            # MLflow cannot delete parameters, so a missing one is a default that is newer than the run.
            held = holds.get(name, text if what == "parameter" else None)
            if held != text:
                yield differs(MlflowKind.DIFFERS, f"run {run_id}", f"{what} {name} is {held!r}, not {text!r}")


def _run(store: Store, run_id: str) -> Run | None:
    try:
        return store.client.get_run(run_id)
    except MlflowException as error:
        if error.error_code in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"):
            return None
        raise


def _check_summaries(store: Store, params: Params, receipts: dict[str, Path]) -> Iterator[Finding]:
    """Compare the mean scores in the comparison's runs with those of the entries' runs."""
    parents = store.client.search_runs([store.experiment], f"tags.`{COMPARISON}` != ''")
    for stage, file in receipts.items():
        receipt = read_json(file) or {}
        for parent in parents:
            name = f"{MEAN} of {file.stem} in {TABLE}"
            logged = _means(parent).get(file.stem)
            if parent.data.tags.get(f"{ENTRY}.{file.stem}") != receipt.get("run_id") or logged is None:
                continue
            value = score_metrics(params, file.stem)[MEAN]
            if logged != value:
                message = f"{name} is {logged!r}, the metric files say {value!r}"
                yield Finding(MlflowKind.DIFFERS, f"run {parent.info.run_id}", message, (stage,))


def _means(parent: "Run") -> dict[str, float]:
    """Return the entries' means in the table of a comparison's run; none if it is a server's, or elsewhere."""
    folder = local_folder(str(parent.info.artifact_uri))
    table = read_json(folder / TABLE) if folder else None
    if not table:
        return {}
    columns = [table["columns"].index(name) for name in ("entry", MEAN)]
    return {row[columns[0]]: row[columns[1]] for row in table["data"]}


def _check_report(
    store: Store, receipts: dict[str, Path], lineage: Lineage, found: Collection[Finding]
) -> Iterator[Finding]:
    """Compare the report with the copies of it that MLflow has; that of any run with one of its entries will do.

    Copies elsewhere than in this folder are not read: they are a server's, or those of a folder that was moved.
    """
    steps = [step for step in lineage.steps.values() if any(item.path == str(REPORT) for item in step.outputs)]
    if not steps or _is_touched(steps[0], found):
        return
    files = {path: digest_of(path, "sha256") for path in sorted(REPORT.rglob("*")) if path.is_file()}
    entries = {f"{ENTRY}.{file.stem}": str((read_json(file) or {}).get("run_id")) for file in receipts.values()}
    copies = []
    for parent in store.client.search_runs([store.experiment], f"tags.`{COMPARISON}` != ''"):
        if any(parent.data.tags.get(tag) == run for tag, run in entries.items()):
            folder = local_folder(str(parent.info.artifact_uri))
            if not (folder and folder.is_relative_to(Path.cwd())):
                return
            copies.append(
                [folder / path for path, digest in files.items() if digest_of(folder / path, "sha256") != digest]
            )
    if copies and (differing := min(copies, key=len)):
        name = os.path.relpath(differing[0])
        yield Finding(MlflowKind.DIFFERS, name, "not the report's file; remove it, run again", (steps[0].stage,))
