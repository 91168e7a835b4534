"""Results whose record in MLflow is lost are recorded again, and nothing else runs."""

import json
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from dvcfleet.errors import FailedError
from dvcfleet.planning.plan import PlannedStage, State, plan
from tests.flows.conftest import Done
from tests.tiny import is_clean, merganser


@pytest.fixture
def project(tiny_copy: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give a copy of the tiny comparison, whose store has its artifacts at the copy's path."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.chdir(tiny_copy)
    with closing(sqlite3.connect("mlflow.db")) as store:
        (old,) = store.execute("SELECT artifact_location FROM experiments WHERE name = 'merganser'").fetchone()
        new = (tiny_copy / "mlartifacts").as_uri()
        store.execute("UPDATE experiments SET artifact_location = replace(artifact_location, ?, ?)", (old, new))
        store.execute("UPDATE runs SET artifact_uri = replace(artifact_uri, ?, ?)", (old, new))
        store.commit()
    return tiny_copy


def work() -> dict[str, PlannedStage]:
    return {node.name: node for node in plan(Path()).work}


def receipts() -> dict[str, str]:
    return {path.stem: json.loads(path.read_text())["run_id"] for path in sorted(Path("data/records").glob("*.json"))}


def delete_run(run: str) -> None:
    with closing(sqlite3.connect("mlflow.db")) as store:
        store.execute("UPDATE runs SET lifecycle_stage = 'deleted' WHERE run_uuid = ?", (run,))
        store.commit()


@pytest.mark.slow
@pytest.mark.parametrize("is_receipt_there", [True, False])
def test_the_run_of_a_receipt_that_is_gone_is_recorded_again(
    project: Path, prefect_api: str, is_receipt_there: bool, done: Done
) -> None:
    before = receipts()
    entry = next(iter(before))
    delete_run(before[entry])
    if not is_receipt_there:  # then DVC's cache has it
        Path(f"data/records/{entry}.json").unlink()
    found = work()
    assert set(found) == {f"record@{entry}", "report"}
    assert "MLflow has no run of it any more" in found[f"record@{entry}"].reasons
    if not is_receipt_there:
        return
    merganser(project, "run", PREFECT_API_URL=prefect_api)
    after = receipts()
    assert after[entry] != before[entry]
    assert after | {entry: ""} == before | {entry: ""}
    assert work() == {}
    assert done(project, "lineage", "verify") == ""
    assert is_clean(project)


def test_without_a_store_all_is_recorded_again(project: Path) -> None:
    Path("mlflow.db").unlink()
    found = work()
    assert set(found) == {*(f"record@{entry}" for entry in receipts()), "report"}
    reasons = {node.reasons for name, node in found.items() if name != "report"}
    assert reasons == {("MLflow's store mlflow.db is gone",)}
    Path("mlflow.db").touch()  # which is a store without tables, for SQLite
    assert set(work()) == set(found)


def test_a_report_that_mlflow_lacks_is_recorded_again(project: Path) -> None:
    (copy,) = Path("mlartifacts").rglob("index.html")
    copy.unlink()
    found = work()
    assert set(found) == {"report"}
    assert found["report"].state is State.STALE
    assert found["report"].reasons[0].endswith("is not whole")
    shutil.rmtree("mlartifacts")
    assert set(work()) == {"report"}


def test_a_copy_of_the_report_that_differs_is_found(project: Path) -> None:
    (copy,) = Path("mlartifacts").rglob("index.html")
    copy.write_text("other")
    said = merganser(project, "lineage", "verify", check=False)
    assert said.returncode == 1
    assert said.stdout.endswith("report/index.html: not the report's file; remove it, run again\n")
    assert said.stdout.count("\n") == 1


@pytest.mark.parametrize("content", [b"no database\n" * 100, bytes(5000)])
def test_a_damaged_store_is_named_before_anything_runs(project: Path, content: bytes) -> None:
    Path("mlflow.db").write_bytes(content)
    with pytest.raises(FailedError, match=r"MLflow's store mlflow\.db is damaged .*: move it away"):
        work()


def test_a_tracking_server_is_not_asked(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    assert work() == {}
