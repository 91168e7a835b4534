"""Tamperings with what MLflow holds: the entries' runs, the comparison's run, and other runs beside them."""

import json
import shutil
from pathlib import Path

from tests.faults.tamperings.edits import (
    OTHER,
    add_metric,
    artifacts,
    copy_run,
    edit,
    in_store,
    log_metric,
    parent,
    run_of,
    tampering,
    write,
)

FORGED = "f" * 32


@tampering("a score in MLflow")
def logged_score() -> None:
    log_metric(run_of(), "score_mean", 0.99)


@tampering("the score that MLflow shows, with its history unchanged")
def shown_score() -> None:
    log_metric(run_of(), "score_mean", 0.99, ("latest_metrics",))


@tampering("a point of a loss curve in MLflow")
def logged_curve() -> None:
    in_store("UPDATE metrics SET value = 0.0 WHERE run_uuid = ? AND key = 'loss' AND step = 0", run_of("ada"))


@tampering("a metric added to a run")
def metric_added() -> None:
    add_metric(run_of(), "accuracy/imagenet", 0.99)


@tampering("all parameters of a run removed")
def params_removed() -> None:
    in_store("DELETE FROM params WHERE run_uuid = ?", run_of())


@tampering("a parameter of a run")
def param_changed() -> None:
    in_store("UPDATE params SET value = '0.9' WHERE run_uuid = ? AND key = 'density'", run_of())


@tampering("the commit of a run")
def tag_changed() -> None:
    in_store("UPDATE tags SET value = ? WHERE run_uuid = ? AND key = 'mlflow.source.git.commit'", "0" * 40, run_of())


@tampering("a tag added to a run")
def tag_added() -> None:
    _tag(run_of(), "reviewed", "yes")


@tampering("an artifact added to a run")
def artifact_added() -> None:
    write(artifacts(run_of()) / "scores.json", "{}")


@tampering("the place of a run's artifacts")
def artifacts_moved() -> None:
    in_store("UPDATE runs SET artifact_uri = 'file:///tmp/elsewhere' WHERE run_uuid = ?", run_of())


@tampering("a run's status")
def status_changed() -> None:
    in_store("UPDATE runs SET status = 'FAILED' WHERE run_uuid = ?", run_of())


@tampering("the start of a run")
def start_changed() -> None:
    in_store("UPDATE runs SET start_time = start_time - 86400000 WHERE run_uuid = ?", run_of())


@tampering("a run's user")
def user_changed() -> None:
    in_store("UPDATE runs SET user_id = 'somebody' WHERE run_uuid = ?", run_of())


@tampering("a run deleted in MLflow")
def run_deleted() -> None:
    in_store("UPDATE runs SET lifecycle_stage = 'deleted' WHERE run_uuid = ?", run_of())


@tampering("a second run of a result, with another score")
def second_run() -> None:
    copy_run(run_of(), FORGED)
    log_metric(FORGED, "score_mean", 0.99)


@tampering("a second run of an entry, with another result")
def second_result() -> None:
    second_run()
    in_store("UPDATE tags SET value = ? WHERE run_uuid = ? AND key = 'merganser.content'", "0" * 64, FORGED)


@tampering("a run without Merganser's tags")
def strange_run() -> None:
    second_run()
    in_store("DELETE FROM tags WHERE run_uuid = ? AND key LIKE 'merganser.%'", FORGED)


@tampering("an invented run of an earlier comparison", why="nothing records earlier results")
def earlier_run() -> None:
    second_result()
    in_store("UPDATE tags SET value = ? WHERE run_uuid = ? AND key = 'mlflow.parentRunId'", "0" * 32, FORGED)


@tampering("an unfinished run", why="a killed run leaves such runs")
def unfinished_run() -> None:
    second_run()
    in_store("UPDATE runs SET status = 'RUNNING' WHERE run_uuid = ?", FORGED)


@tampering("the time of a metric in MLflow", why="times of numbers are not compared")
def metric_time() -> None:
    in_store("UPDATE metrics SET timestamp = 1 WHERE run_uuid = ?", run_of())


@tampering("a number of a logged model", why="logged models are not compared")
def logged_model() -> None:
    in_store("UPDATE logged_model_metrics SET metric_value = 0.99 WHERE run_id = ?", run_of())


@tampering("a metric added to the comparison's run")
def parent_metric_added() -> None:
    add_metric(parent(), "score_mean", 0.99)


@tampering("a tag added to the comparison's run")
def parent_tag_added() -> None:
    _tag(parent(), "reviewed", "yes")


@tampering("an entry's run in the comparison's run")
def parent_entry() -> None:
    in_store("UPDATE tags SET value = ? WHERE run_uuid = ? AND key = 'merganser.entry.ties'", run_of(OTHER), parent())


@tampering("a sentence added to the comparison's description")
def description() -> None:
    note = "UPDATE tags SET value = value || ' All reviewed.' WHERE run_uuid = ? AND key = 'mlflow.note.content'"
    in_store(note, parent())


@tampering("the name of the comparison's run")
def parent_name() -> None:
    _rename(parent(), "reviewed")


@tampering("the start of the comparison's run")
def parent_time() -> None:
    in_store("UPDATE runs SET start_time = start_time - 86400000 WHERE run_uuid = ?", parent())


@tampering("a score in the table of the comparison's run")
def parent_table() -> None:
    path = artifacts(parent()) / "comparison.json"
    table = json.loads(path.read_text())
    table["data"][0][1] = 0.99
    write(path, json.dumps(table))


@tampering("a column added to the table of the comparison's run")
def parent_column() -> None:
    path = artifacts(parent()) / "comparison.json"
    table = json.loads(path.read_text())
    write(path, json.dumps({"columns": [*table["columns"], "tuned"], "data": [[*row, 1] for row in table["data"]]}))


@tampering("MLflow's copy of the report")
def parent_report() -> None:
    edit(artifacts(parent()) / "report/results.csv", "0.", "0.9")


@tampering("a file added to the artifacts of the comparison's run")
def parent_artifact() -> None:
    write(artifacts(parent()) / "review.html", "<p>")


@tampering("MLflow's store emptied")
def store_emptied() -> None:
    write(Path("mlflow.db"), b"")


@tampering("MLflow's artifacts removed")
def artifacts_removed() -> None:
    shutil.rmtree("mlartifacts")


def _tag(run_id: str, key: str, value: str) -> None:
    in_store("INSERT INTO tags (key, value, run_uuid) VALUES (?, ?, ?)", key, value, run_id)


def _rename(run_id: str, name: str) -> None:
    in_store("UPDATE runs SET name = ? WHERE run_uuid = ?", name, run_id)
    in_store("UPDATE tags SET value = ? WHERE run_uuid = ? AND key = 'mlflow.runName'", name, run_id)
