"""Record one entry's results in MLflow (KEY), or the whole comparison's report (--report).

One parent run per comparison, one child per entry. A result is known by its content key, so that it has one run.
MLflow appears here and in `merganser.tasks.store` only.
"""

import json
import logging
import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from merganser.config.loading import PARAMS, load_params
from merganser.config.params import Params, declared
from merganser.errors import InputError
from merganser.evaluation.examples import read_results
from merganser.hashes import sha256_of_json, sha256_of_tree
from merganser.outputs import read_json, write_json
from merganser.report.origin import commit_of, user_name
from merganser.report.scores import read_scores
from merganser.tasks.recorded import (
    COMMIT,
    COMPARISON,
    CONTENT,
    ENTRY,
    LOGGED_TABLES,
    OBSERVED,
    PARENT,
    POINTS,
    PREFECT,
    REPORTED,
    RUN,
    SOURCE,
    STUDY_KEY,
    TABLE,
    USER,
    Curve,
    Held,
    comparison_metrics,
    comparison_run,
    entry_run,
    logged,
    parameters,
    relative_metrics,
    run_description,
    run_details,
    study_runs,
    summary_table,
)
from merganser.tasks.stage import run_main
from merganser.tasks.stages import EXAMPLES, MERGE_PROFILES, MERGED, METRICS, RECORDS, REPORT, UNSEEN
from merganser.tasks.store import Store, open_store
from merganser.tasks.tracking import comparison_folder, store_words
from merganser.terminal.secrets import masked

LOCK, LEDGER = Path(".dvcfleet/mlflow.lock"), Path(".dvcfleet/ledger.jsonl")
BATCH = 1000  # metrics that MLflow takes at once
MODEL_SOURCE = "merganser.source"


def record_entry(params: Params, entry: str) -> None:
    """Record an entry's parameters, scores and origins in MLflow, once, and write the receipt with its run."""
    held = entry_run(params, entry)
    key = held.tags[CONTENT]
    with _locked_store() as store:
        run_id = store.find(CONTENT, key)
        if run_id is not None:
            _log(store, run_id, held.metrics, held.params)  # what an older version did not record
            for tag in held.tags.keys() - store.client.get_run(run_id).data.tags.keys():
                store.client.set_tag(run_id, tag, held.tags[tag])
        else:
            profile = read_json(MERGE_PROFILES / f"{entry}.json")
            observed = {name: float(profile[name]) for name in OBSERVED}
            run_id = _write_run(store, params, replace(held, metrics={**held.metrics, **observed}))
        _write_receipt(store, entry, run_id, key)
    print(f"{entry}: MLflow run {run_id}")


@contextmanager
def _locked_store() -> Iterator[Store]:
    """Open the store alone: several entries are recorded at once; one store, one parent, no result twice."""
    from filelock import FileLock

    lock = comparison_folder() / LOCK
    lock.parent.mkdir(exist_ok=True)
    with FileLock(lock):
        yield open_store()


def comparison_name(params: Params) -> str:
    """Return the comparison's name: that of the flow's run, else one from the content of params.yaml."""
    return os.environ.get("DVCFLEET_RUN") or f"comparison-{sha256_of_json(params.model_dump())[:8]}"


def _parent_run(store: Store, params: Params) -> str:
    """Find or create the comparison's run. Call it under the lock."""
    name = comparison_name(params)
    run = store.find(COMPARISON, name)
    if run:
        return run
    held = comparison_run(params, name)
    made = store.begin(COMPARISON, name, held.name, {**held.tags, **_origin()})
    _log(store, made, {}, held.params)
    store.client.set_terminated(made)
    return made


def _write_run(store: Store, params: Params, held: Held) -> str:
    origin = {PARENT: _parent_run(store, params), RUN: comparison_name(params), **_origin()}
    if params.trial:
        origin["merganser.trial"] = "; ".join(f"{key}: {change.shown}" for key, change in params.trial.items())
    made = store.begin(CONTENT, held.tags[CONTENT], held.name, {**held.tags, **origin})
    _link(store, made, params, held)
    _log(store, made, held.metrics, held.params)
    for name, curve in held.curves.items():
        _log_curve(store, made, name, curve)
    store.client.set_terminated(made)
    return made


def _link(store: Store, run_id: str, params: Params, held: Held) -> None:
    """Log the entry's inputs and its merge: models and data sets as inputs, the merge as a logged model."""
    from mlflow.entities import Dataset, DatasetInput, InputTag, LoggedModelInput, LoggedModelOutput, Metric

    outputs = store.client.get_run(run_id).outputs
    if outputs and outputs.model_outputs:  # a kill came after them
        return
    split = InputTag("mlflow.data.context", params.evaluation.name)
    entry, metrics = held.name, held.metrics
    data = {task: Dataset(task, *_data_of(params, entry, task)) for task in params.measured}
    sources = {"base": params.base.source} | {task: about.source for task, about in params.tasks.items()}
    models = [LoggedModelInput(_model(store, name, masked(source))) for name, source in sources.items()]
    store.client.log_inputs(run_id, [DatasetInput(each, [split]) for each in data.values()], models)
    values = {name: masked(str(value)) for name, value in parameters(params, entry).items()}
    made = store.client.create_logged_model(
        store.experiment, entry, run_id, {MODEL_SOURCE: str(MERGED / entry)}, values, "merge"
    )
    store.client.finalize_logged_model(made.model_id, "READY")
    now = int(time.time() * 1000)
    scored = [(name, task) for name in metrics for task in data if name.endswith(f"/{task}")]
    of_model = [
        Metric(name, metrics[name], now, 0, made.model_id, data[task].name, data[task].digest) for name, task in scored
    ]
    store.client.log_batch(run_id, metrics=of_model)
    store.client.log_outputs(run_id, [LoggedModelOutput(made.model_id, 0)])


def _data_of(params: Params, entry: str, task: str) -> tuple[str, str, str, None, str]:
    """Return the digest, kind, source, schema and size of a task's test data; the digest is that of the labels."""
    results, source = read_results(EXAMPLES / entry / f"{task}.safetensors"), masked(params.tasks[task].data.source)
    about = {"examples": len(results), "split": params.split_of(task)}
    labels = None if results.label is None else results.label.tolist()
    digest = sha256_of_json({"source": source, "labels": labels, **about})[:8]
    return digest, "local", json.dumps({"uri": source}), None, json.dumps(about)


def _model(store: Store, name: str, source: str) -> str:
    """Return the logged model of a source; create it if there is none."""
    key = sha256_of_json([name, source])[:16]
    models = store.client.search_logged_models([store.experiment], f"tags.`merganser.key` = '{key}'", max_results=1)
    if models:
        return str(models[0].model_id)
    made = store.client.create_logged_model(store.experiment, name, tags={MODEL_SOURCE: source, "merganser.key": key})
    store.client.finalize_logged_model(made.model_id, "READY")
    return str(made.model_id)


def _log_curve(store: Store, run_id: str, name: str, curve: Curve) -> None:
    """Log those values of a metric by step that the run does not have yet."""
    from mlflow.entities import Metric

    known = {metric.step for metric in store.client.get_metric_history(run_id, name)}
    now = int(time.time() * 1000)
    missing = [Metric(name, value, now, step) for step, value in curve if step not in known]
    for start in range(0, len(missing), BATCH):
        store.client.log_batch(run_id, metrics=missing[start : start + BATCH])


def _log(store: Store, run_id: str, metrics: Mapping[str, float], values: Mapping[str, str]) -> None:
    """Log those values that a run does not have yet, so that a second call changes nothing."""
    from mlflow.entities import Metric, Param

    data = store.client.get_run(run_id).data
    now = int(time.time() * 1000)  # of two values MLflow shows the later one
    store.client.log_batch(
        run_id,
        metrics=[Metric(name, value, now, 0) for name, value in metrics.items() if data.metrics.get(name) != value],
        params=[Param(name, value) for name, value in values.items() if name not in data.params],
    )


def _origin() -> dict[str, str]:
    """Return user, program and commit as MLflow's own clients record them; unknown values are left out."""
    known = {USER: user_name(), COMMIT: commit_of()}
    return SOURCE | {tag: text for tag, text in known.items() if text is not None}


def _write_receipt(store: Store, entry: str, run_id: str, key: str) -> None:
    made = store.client.get_run(run_id)
    tags, metrics = made.data.tags, made.data.metrics
    parent = store.client.search_runs([store.experiment], f"attributes.run_id = '{tags[PARENT]}'")  # none if deleted
    receipt = {
        "entry": entry,
        "run_id": run_id,
        "parent_run_id": tags[PARENT],
        "experiment_id": store.experiment,
        "run": tags[RUN],
        "commit": tags.get(COMMIT),
        "content": key,
        "observed": {name: metrics[name] for name in OBSERVED if name in metrics},
        "details": {run.info.run_id: run_details(run.info) for run in (made, *parent)},
    }
    write_json(RECORDS / f"{entry}.json", receipt)


def record_report(params: Params) -> None:
    """Log all scores and the report's files to the comparison's run, and comparisons of entries to each entry's.

    A second call changes nothing.
    """
    if not (REPORT / "index.html").is_file():
        raise InputError(f"{REPORT}/index.html: missing; write the report first: python -m merganser.tasks.report")
    scores = read_scores(params, METRICS, MERGE_PROFILES, UNSEEN)
    with _locked_store() as store:
        parent = _parent_run(store, params)
        for entry, score in scores.items():
            receipt = read_json(RECORDS / f"{entry}.json")
            _log(store, receipt["run_id"], relative_metrics(score, entry), {})
            store.client.set_tag(parent, f"{ENTRY}.{entry}", receipt["run_id"])
        _log(store, parent, comparison_metrics(scores), {})
        store.client.log_dict(parent, summary_table(scores), TABLE)
        store.client.set_tag(parent, LOGGED_TABLES, logged(TABLE))
        flow_run = _flow_run(comparison_name(params))
        if flow_run:
            store.client.set_tag(parent, PREFECT, flow_run)
        store.client.set_tag(parent, "mlflow.note.content", run_description(scores, flow_run))
        store.client.log_artifacts(parent, str(REPORT), "report")
        store.client.log_artifact(parent, str(PARAMS))
        for held, table in study_runs(comparison_name(params), read_json(REPORT / "studies.json")).values():
            _write_study(store, parent, held, table)
        store.client.set_tag(parent, REPORTED, sha256_of_tree(REPORT))
    print(f"{comparison_name(params)}: MLflow run {parent}")


def _write_study(store: Store, parent: str, held: Held, table: dict[str, Any]) -> None:
    """Write a study as a child run of the comparison's, once: its points as a table, their scores as a curve."""
    if store.find(STUDY_KEY, held.tags[STUDY_KEY]):
        return
    made = store.begin(STUDY_KEY, held.tags[STUDY_KEY], held.name, {**held.tags, PARENT: parent, **_origin()})
    store.client.log_dict(made, table, POINTS)
    for name, curve in held.curves.items():
        _log_curve(store, made, name, curve)
    store.client.set_terminated(made)


def _flow_run(run: str) -> str | None:
    """Return the id of the Prefect run of a run's finished stages, from the ledger."""
    lines = LEDGER.read_text(encoding="utf-8", errors="replace").splitlines() if LEDGER.is_file() else []
    for line in reversed(lines):
        with suppress(ValueError, AttributeError):
            entry = json.loads(line)
            if entry.get("run") == run:
                return str(entry["flow_run"]) if entry.get("flow_run") else None
    return None


def main(argv: list[str]) -> None:
    """Record the entry named on the command line, or the report."""
    params = load_params()
    match argv:
        case ["--report"]:
            with _stored():
                record_report(params)
        case [entry]:
            declared(params.methods, entry, "methods")
            with _stored():
                record_entry(params, entry)
        case _:
            raise InputError(f"merganser.tasks.record: expected METHOD or --report, got {' '.join(argv) or 'nothing'}")


@contextmanager
def _stored() -> Iterator[None]:
    """End with a message if the store is locked or unreachable: files keep everything that would be recorded."""
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

    logging.getLogger("mlflow").setLevel(logging.CRITICAL)  # its tracebacks of what is said here in a line
    try:
        yield
    except (MlflowException, SQLAlchemyError) as error:
        sys.exit(store_words(error))


if __name__ == "__main__":
    run_main(main)
