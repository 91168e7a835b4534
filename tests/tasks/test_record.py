import getpass
import io
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pandas
import pytest
import yaml
from mlflow import MlflowClient
from mlflow.entities import Run

import merganser
from merganser.config.loading import load_params
from merganser.errors import InputError
from merganser.tasks import record
from merganser.tasks.recorded import study_runs
from merganser.tasks.store import open_store
from merganser.tasks.tracking import follow_artifacts
from tests import PYTHONPATH
from tests.tasks.comparison import METHODS, TASKS, inside, report_without_plots, write_params


@pytest.fixture
def folder(comparison: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Give a copy of an evaluated comparison to work in, its store still empty."""
    monkeypatch.delenv("DVCFLEET_RUN", raising=False)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    for name in ("params.yaml", "data", "mlflow.db"):
        subprocess.run(["cp", "-r", comparison / name, tmp_path / name], check=True)
    with inside(tmp_path):
        yield tmp_path


@pytest.fixture(scope="module")
def reported(comparison: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a comparison that is recorded, one of its tasks a group of data sets, and whose report is logged."""
    made = tmp_path_factory.mktemp("reported") / "comparison"
    shutil.copytree(comparison, made)
    with pytest.MonkeyPatch.context() as patch, inside(made):
        for name in ("DVCFLEET_RUN", "MLFLOW_TRACKING_URI"):
            patch.delenv(name, raising=False)
        with_data_sets(Path("data/metrics/sum/dark.json"))
        for entry in METHODS:
            record.main([entry])
        report_without_plots()
        record.main(["--report"])
    return made


@pytest.fixture
def in_reported(reported: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Work in it."""
    for name in ("DVCFLEET_RUN", "MLFLOW_TRACKING_URI"):
        monkeypatch.delenv(name, raising=False)
    with inside(reported):
        yield reported


def runs(store: str = "mlflow.db") -> list[Run]:
    client = MlflowClient(f"sqlite:///{Path(store).absolute()}")
    experiment = client.get_experiment_by_name("merganser")
    return list(client.search_runs([experiment.experiment_id])) if experiment else []


def children(found: list[Run]) -> dict[str, Run]:
    return {run.info.run_name: run for run in found if "merganser.entry" in run.data.tags}


def receipt(entry: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(Path(f"data/records/{entry}.json").read_text())
    return content


def test_a_record_holds_scores_parameters_costs_and_origins(folder: Path) -> None:
    record.main(["sum"])
    run = children(runs())["sum"]
    values = {task: json.loads(Path(f"data/metrics/sum/{task}.json").read_text())["value"] for task in TASKS}
    assert {name: run.data.metrics[f"accuracy/{name}"] for name in TASKS} == values
    assert run.data.metrics["score_mean"] == pytest.approx(sum(values.values()) / 3)
    assert {"amr", "wall_s", "cpu_s", "peak_rss_bytes"} <= run.data.metrics.keys()
    assert run.data.params["method"] == "task_arithmetic"
    assert run.data.params["scaling"] == "0.5"
    assert run.data.params["coefficients"] == "None"
    assert len(run.data.tags["sha256.data/metrics/sum/dark.json"]) == 64
    assert len(run.data.tags["sha256.data/examples/sum/dark.safetensors"]) == 64
    assert run.info.status == "FINISHED"


def test_licences_that_do_not_go_together_are_a_tag_of_the_run(folder: Path) -> None:
    lines = ["no licence is known of a", "other terms, which are not known here: other (b)"]
    path = Path("data/profiles/merge/average.json")
    path.write_text(json.dumps(json.loads(path.read_text()) | {"licences": lines}))
    record.main(["sum"])
    record.main(["average"])
    tags = {name: run.data.tags for name, run in children(runs()).items()}
    assert tags["average"]["merganser.licences"] == "\n".join(lines)
    assert "merganser.licences" not in tags["sum"]


def with_data_sets(path: Path) -> None:
    """Give a score the values on the data sets of a group."""
    path.write_text(json.dumps(json.loads(path.read_text()) | {"data_sets": {"few": 0.25, "many": 0.5}}))


def test_the_values_on_the_data_sets_of_a_group_are_recorded_and_reported(in_reported: Path) -> None:
    metrics = children(runs())["sum"].data.metrics
    assert (metrics["accuracy/dark/few"], metrics["accuracy/dark/many"]) == (0.25, 0.5)
    lines = Path("report/data_sets.csv").read_text().splitlines()
    assert lines == ["entry,task,data_set,metric,value", "sum,dark,few,accuracy,0.25", "sum,dark,many,accuracy,0.5"]
    assert 'href="data_sets.csv"' in Path("report/index.html").read_text()


def test_the_losses_of_learned_values_are_logged_by_step(folder: Path) -> None:
    profile = Path("data/profiles/merge/sum.json")
    checks = [{"step": step, "loss": 2.0 - step / 1000} for step in (0, 1200)]
    trace = {"settings": {"steps": 1200}, "losses": [3.0 - step / 1000 for step in range(1200)], "checks": checks}
    profile.write_text(json.dumps(json.loads(profile.read_text()) | {"learned": trace}))
    record.main(["sum"])
    client, run_id = MlflowClient(f"sqlite:///{folder}/mlflow.db"), receipt("sum")["run_id"]
    assert client.get_run(run_id).data.params["learned.steps"] == "1200"
    for name, expected in (("loss", dict(enumerate(trace["losses"]))), ("fixed_loss", {0: 2.0, 1200: 0.8})):
        found = client.get_metric_history(run_id, name)
        assert {metric.step: metric.value for metric in found} == expected
        assert len(found) == len(expected)


def test_the_entries_of_one_comparison_share_one_parent(in_reported: Path) -> None:
    found = runs()
    parents = [run for run in found if "mlflow.parentRunId" not in run.data.tags]
    assert set(children(found)) == set(METHODS)
    assert [run.info.run_id for run in parents] == list({receipt(entry)["parent_run_id"] for entry in METHODS})


def test_recording_the_same_result_again_makes_no_second_run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record.main(["average"])
    first = receipt("average")
    Path("data/records/average.json").unlink()
    monkeypatch.setenv("DVCFLEET_RUN", "another")
    record.main(["average"])
    assert receipt("average") == first
    assert len(children(runs())) == 1


def test_a_changed_result_makes_its_own_run(folder: Path) -> None:
    record.main(["average"])
    first = receipt("average")
    file = Path("data/metrics/average/dark.json")
    file.write_text(json.dumps(json.loads(file.read_text()) | {"value": 0.125}))
    record.main(["average"])
    assert receipt("average")["run_id"] != first["run_id"]


def test_a_changed_parameter_makes_its_own_run(folder: Path) -> None:
    record.main(["sum"])
    first = receipt("sum")
    write_params(folder, METHODS | {"sum": METHODS["sum"] | {"scaling": 0.25}})
    record.main(["sum"])
    assert receipt("sum")["run_id"] != first["run_id"]


def test_what_was_measured_on_some_examples_is_marked_as_partial(folder: Path) -> None:
    record.main(["average"])
    assert not any("merganser.partial" in run.data.tags for run in runs())
    params = yaml.safe_load(Path("params.yaml").read_text())
    params["evaluation"] = params.get("evaluation", {}) | {"split": {"name": "test", "examples": 7}}
    Path("params.yaml").write_text(yaml.safe_dump(params, sort_keys=False))
    Path("data/metrics/average/dark.json").write_text(
        json.dumps(json.loads(Path("data/metrics/average/dark.json").read_text()) | {"value": 0.125, "count": 7})
    )
    record.main(["average"])
    marked = [run for run in runs() if run.data.tags.get("merganser.partial") == "at most 7 examples of each task"]
    assert {run.info.run_id for run in marked} == {receipt("average")["run_id"], receipt("average")["parent_run_id"]}


def test_the_flows_run_names_the_parent(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DVCFLEET_RUN", "brave-heron")
    record.main(["average"])
    assert [run.info.run_name for run in runs() if "mlflow.parentRunId" not in run.data.tags] == ["brave-heron"]
    assert receipt("average")["run"] == "brave-heron"


def test_without_a_flow_the_parent_is_named_by_the_content_of_the_params(folder: Path) -> None:
    first = record.comparison_name(load_params(Path("params.yaml")))
    assert first == record.comparison_name(load_params(Path("params.yaml")))
    write_params(folder, METHODS | {"sum": METHODS["sum"] | {"scaling": 0.25}})
    assert record.comparison_name(load_params(Path("params.yaml"))) != first


@pytest.mark.drill
def test_processes_that_record_at_once_share_a_store_and_a_parent(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("mlflow.db").unlink()
    monkeypatch.setenv("DVCFLEET_RUN", "crowd")
    monkeypatch.setenv("PYTHONPATH", PYTHONPATH)
    entries = ("base", "average", "average")
    started = [subprocess.Popen([sys.executable, "-m", "merganser.tasks.record", entry]) for entry in entries]
    assert [process.wait() for process in started] == [0, 0, 0]
    found = runs()
    assert sorted(children(found)) == ["average", "base"]
    assert len(found) == 3  # two results and their one parent


def test_the_tracking_uri_of_the_environment_is_used(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("mlflow.db").rename("elsewhere.db")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{folder}/elsewhere.db")
    record.main(["average"])
    assert set(children(runs("elsewhere.db"))) == {"average"}
    assert not Path("mlflow.db").exists()


def test_the_report_is_logged_once_with_the_relative_scores(in_reported: Path) -> None:
    found = runs()
    record.main(["--report"])
    parent = next(run for run in runs() if "mlflow.parentRunId" not in run.data.tags)
    assert len(runs()) == len(found)
    client = MlflowClient(f"sqlite:///{in_reported}/mlflow.db")
    assert {file.path for file in client.list_artifacts(parent.info.run_id, "report")} >= {
        "report/index.html",
        "report/results.csv",
        "report/plots",
    }
    table = json.loads(Path(client.download_artifacts(parent.info.run_id, "comparison.json")).read_text())
    lines = {line["entry"]: line for line in (dict(zip(table["columns"], row, strict=True)) for row in table["data"])}
    assert set(lines) == set(METHODS)
    assert parent.data.metrics == {f"score_mean/{entry}": line["score_mean"] for entry, line in lines.items()}
    for run in runs():
        assert run.data.tags["mlflow.user"] == run.info.user_id == getpass.getuser()
        assert (run.data.tags["mlflow.source.name"], run.data.tags["mlflow.source.type"]) == ("merganser", "LOCAL")
    assert lines["individual"]["normalised_score"] == 1
    mean = children(runs())["average"].data.metrics["score_mean"]
    assert (lines["average"]["score_mean"], lines["average"]["stderr"]) == (
        mean,
        children(runs())["average"].data.metrics["score_mean_stderr"],
    )
    assert json.loads(parent.data.tags["mlflow.loggedArtifacts"]) == [{"path": "comparison.json", "type": "table"}]
    assert "params.yaml" in {file.path for file in client.list_artifacts(parent.info.run_id)}
    assert children(runs())["individual"].data.metrics["score_drop_rate"] == 0
    assert children(runs())["individual"].data.metrics["error_mean"] == pytest.approx(0, abs=1e-5)
    assert children(runs())["base"].data.metrics["sar_mean"] == 0
    assert 0.5 < children(runs())["average"].data.metrics["sar_mean"] <= 1
    assert "| individual |" in parent.data.tags["mlflow.note.content"]
    assert parent.data.tags["merganser.entry.sum"] == receipt("sum")["run_id"]


def test_each_study_is_a_run_within_the_comparisons_with_its_points_as_a_table(
    reported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Path(shutil.copytree(reported, tmp_path / "copy"))
    monkeypatch.delenv("DVCFLEET_RUN", raising=False)
    points = [{"value": value, "score": value / 2, "tasks": {"dark": {"value": 1.0}}} for value in (0.25, 0.5)]
    (folder / "report/studies.json").write_text(json.dumps({"sweeps": {"scaling": points}, "budgets": []}))
    with inside(folder):
        record.main(["--report"])
        record.main(["--report"])
        (study,) = [run for run in runs() if run.data.tags.get("merganser.study") == "sweeps.scaling"]
        parents = {receipt(entry)["parent_run_id"] for entry in METHODS}
        assert (study.info.run_name, {study.data.tags["mlflow.parentRunId"]}) == ("study sweeps.scaling", parents)
        client = MlflowClient(f"sqlite:///{folder}/mlflow.db")
        history = client.get_metric_history(study.info.run_id, "score_mean")
        assert [(metric.step, metric.value) for metric in history] == [(0, 0.125), (1, 0.25)]
        table = json.loads(Path(client.download_artifacts(study.info.run_id, "points.json")).read_text())
    assert table == {"columns": ["value", "score"], "data": [[0.25, 0.125], [0.5, 0.25]]}


def test_only_a_study_whose_points_have_mean_scores_has_them_as_a_curve(in_reported: Path) -> None:
    held = study_runs("run", json.loads(Path("report/studies.json").read_text()))
    assert {name: list(run.curves) for name, (run, _) in held.items()} == {
        "tasks.subsets": ["score_mean"],
        "tasks.sizes": [],
        "rank.tasks": [],
    }


def test_a_report_opens_as_frames_that_agree_with_its_tables(in_reported: Path) -> None:
    opened = merganser.open_report()
    assert set(opened.results["entry"]) == set(METHODS)
    assert opened.results.equals(merganser.load("report/results.csv"))
    written = pandas.read_parquet("report/results.parquet")
    assert written["mean"].tolist() == opened.results["mean"].tolist()
    named = opened.pairs.query("column == 'mean'")
    assert len(named) == len(METHODS) * (len(METHODS) - 1) / 2
    means = opened.results.set_index("entry")["mean"]
    assert (means[named["entry"]].to_numpy() - means[named["other"]].to_numpy()) == pytest.approx(
        named["difference"].to_numpy()
    )
    assert opened.pairs.equals(pandas.read_csv("report/pairs.csv"))
    assert opened.studies["tasks.subsets"]["score"].notna().all()
    page = opened._repr_html_()
    assert page.index("individual") < page.index("base")
    assert "data" not in pandas.read_html(io.StringIO(page))[0].columns
    with pytest.raises(merganser.InputError, match="no report there; name a comparison's folder"):
        merganser.open_report("data")


def test_models_and_data_are_inputs_and_the_merge_is_a_logged_model(folder: Path) -> None:
    record.main(["average"])
    record.main(["sum"])
    client = MlflowClient(f"sqlite:///{folder}/mlflow.db")  # MLflow keeps a store by its address
    found = {name: client.get_run(run.info.run_id) for name, run in children(runs()).items()}
    inputs = {name: found[name].inputs for name in ("average", "sum")}
    data = [each.dataset for each in inputs["sum"].dataset_inputs]
    assert [each.name for each in data] == list(TASKS)
    assert [each.digest for each in data] == [each.dataset.digest for each in inputs["average"].dataset_inputs]
    models = {client.get_logged_model(each.model_id).name for each in inputs["sum"].model_inputs}
    assert models == {"base", *TASKS}
    assert inputs["sum"].model_inputs == inputs["average"].model_inputs  # the same models, not made twice
    assert client.get_experiment_by_name("merganser").tags["mlflow.experimentKind"] == "custom_model_development"
    (output,) = found["sum"].outputs.model_outputs
    made = client.get_logged_model(output.model_id)
    assert (made.name, made.params["scaling"], made.status) == ("sum", "0.5", "READY")
    dark = next(metric for metric in made.metrics or [] if metric.key == "accuracy/dark")
    assert (dark.dataset_name, dark.value) == ("dark", found["sum"].data.metrics["accuracy/dark"])


def test_a_result_that_an_older_version_recorded_gets_what_that_left_out(folder: Path) -> None:
    record.main(["average"])
    with closing(sqlite3.connect("mlflow.db")) as store, store:
        for table in ("metrics", "latest_metrics"):
            store.execute(f"DELETE FROM {table} WHERE key = 'score_mean_stderr'")
    Path("data/records/average.json").unlink()
    record.main(["average"])
    assert children(runs())["average"].data.metrics["score_mean_stderr"] > 0


def test_artifacts_are_found_after_the_folder_has_moved(reported: Path, tmp_path: Path) -> None:
    moved = tmp_path / "elsewhere"
    reported.rename(moved)
    try:
        follow_artifacts(moved)
        client = MlflowClient(f"sqlite:///{moved}/mlflow.db")
        (experiment,) = [each for each in client.search_experiments() if each.name == "merganser"]
        parent = client.search_runs([experiment.experiment_id], "tags.`merganser.comparison` != ''")[0]
        assert {file.path for file in client.list_artifacts(parent.info.run_id)} >= {"comparison.json", "report"}
    finally:
        moved.rename(reported)
        follow_artifacts(reported)


def test_a_copy_has_its_own_artifacts_though_the_others_are_still_there(reported: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(reported, tmp_path / "copy", symlinks=True))
    follow_artifacts(copy)
    follow_artifacts(reported)
    for folder in (copy, reported):
        with closing(sqlite3.connect(folder / "mlflow.db")) as store:
            where = (
                "SELECT artifact_uri FROM runs UNION SELECT artifact_location FROM experiments WHERE name <> 'Default'"
            )
            places = {place for (place,) in store.execute(where)}
        assert {place.partition("/mlartifacts")[0] for place in places} == {folder.as_uri()}


def test_results_that_are_not_there_yet_are_named(folder: Path) -> None:
    Path("data/metrics/sum/light.json").unlink()
    with pytest.raises(InputError, match=r"data/metrics/sum/light\.json: missing"):
        record.main(["sum"])
    with pytest.raises(InputError, match=r"report/index\.html: missing"):
        record.main(["--report"])


def test_anything_but_an_entry_or_the_report_is_refused(folder: Path) -> None:
    with pytest.raises(InputError, match='no "averag" under methods'):
        record.main(["averag"])
    with pytest.raises(InputError, match="expected METHOD or --report, got nothing"):
        record.main([])


def test_a_store_is_made_in_a_folder_whose_name_has_quotes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder := tmp_path / 'Ana\'s "best" :runs').mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    store = open_store()
    assert store.client.get_experiment(store.experiment).artifact_location == (folder / "mlartifacts").as_uri()


@pytest.mark.drill
def test_a_kill_while_the_store_is_made_leaves_nothing_that_stands_in_the_way(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "from merganser.tasks.store import open_store; print(open_store().experiment)"]
    environment = {name: value for name, value in os.environ.items() if name != "MLFLOW_TRACKING_URI"}
    environment["PYTHONPATH"] = PYTHONPATH
    for moment in (0.0, 0.3):
        process = subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=subprocess.DEVNULL)
        while not list(tmp_path.glob("mlflow.db.*.draft")):
            assert process.poll() is None
            time.sleep(0.001)
        time.sleep(moment)
        process.kill()
        process.wait()
    made = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    assert made.stdout.strip().isdecimal()
    assert [path.name for path in tmp_path.iterdir()] == ["mlflow.db"]


KILLED = """
import os, signal
from mlflow import MlflowClient
from merganser.tasks import record

calls, made = [], MlflowClient.{call}

def killed(*args, **options):
    calls.append(None)
    if len(calls) == {number}:
        os.kill(os.getpid(), signal.SIGKILL)
    return made(*args, **options)

MlflowClient.{call} = killed
record.main(["average"])
"""


@pytest.mark.drill
def test_a_run_that_a_kill_left_unfinished_is_finished_and_no_second_one_made(folder: Path) -> None:
    # In the parent run before its parameters are there, then in the entry's own when all is there.
    for call, number in (("log_batch", 1), ("set_terminated", 2)):
        code = KILLED.format(call=call, number=number)
        environment = os.environ | {"PYTHONPATH": PYTHONPATH}
        ended = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, check=False)
        assert ended.returncode == -signal.SIGKILL
        assert not Path("data/records/average.json").exists()
    record.main(["average"])
    found = runs()
    assert [run.info.status for run in found] == ["FINISHED"] * 2
    assert {"base", "seed"} <= set(next(run for run in found if "mlflow.parentRunId" not in run.data.tags).data.params)
    assert receipt("average")["run_id"] == children(found)["average"].info.run_id
    assert "score_mean" in children(found)["average"].data.metrics


def test_a_store_of_another_version_of_mlflow_is_named_as_one(folder: Path) -> None:
    with closing(sqlite3.connect("mlflow.db")) as store, store:
        store.execute("UPDATE alembic_version SET version_num = '451aebb31d03'")  # of MLflow 1.0
    with pytest.raises(SystemExit, match=r"mlflow\.db is of another version of MLflow: .*mlflow db upgrade"):
        record.main(["average"])


@pytest.mark.slow
def test_a_store_that_is_locked_or_away_is_named_and_scores_are_kept(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(sqlite3.connect("mlflow.db", isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(SystemExit, match=r"MLflow's store mlflow\.db is locked or away .*database is locked"):
            record.main(["average"])
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    with pytest.raises(SystemExit, match=r"MLflow's store http://127\.0\.0\.1:9 is locked or away .*run again"):
        record.main(["average"])
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    record.main(["average"])
    assert len(runs()) == 2
