"""Results whose record in MLflow is lost are recorded again, and nothing else runs."""

import shutil
import sqlite3
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from dvcfleet.errors import FailedError
from dvcfleet.planning.plan import PlannedStage, State, plan
from merganser.flows.commands.cli import main
from merganser.flows.commands.mlflow_gc import old_runs, store_here
from tests.tiny import delete_run, receipts


@pytest.fixture
def project(tiny_copy: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in a copy of the tiny comparison."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.chdir(tiny_copy)
    return tiny_copy


def work() -> dict[str, PlannedStage]:
    return {node.name: node for node in plan(Path()).work}


@pytest.mark.parametrize("is_receipt_there", [True, False])
def test_the_run_of_a_receipt_that_is_gone_is_recorded_again(project: Path, is_receipt_there: bool) -> None:
    """What that run does is in tests/test_pipeline.py."""
    before = receipts(project)
    entry = next(iter(before))
    delete_run(project, before[entry])
    if not is_receipt_there:  # then DVC's cache has it
        Path(f"data/records/{entry}.json").unlink()
    found = work()
    assert set(found) == {f"record@{entry}", "report"}
    assert "MLflow has no run of it any more" in found[f"record@{entry}"].reasons


def test_an_experiment_that_is_deleted_is_named_before_any_work_with_the_command_that_restores_it(
    project: Path,
) -> None:
    with closing(sqlite3.connect("mlflow.db")) as store, store:
        store.execute("UPDATE experiments SET lifecycle_stage = 'deleted' WHERE name = 'merganser'")
    with pytest.raises(FailedError, match=r"experiment merganser is deleted.*sqlite:///mlflow.db mlflow experiments r"):
        work()


def test_without_a_store_all_is_recorded_again(project: Path) -> None:
    Path("mlflow.db").unlink()
    found = work()
    assert set(found) == {*(f"record@{entry}" for entry in receipts(project)), "report"}
    reasons = {node.reasons for name, node in found.items() if name != "report"}
    assert reasons == {("MLflow's store mlflow.db is gone",)}
    Path("mlflow.db").touch()  # which is a store without tables, for SQLite
    assert set(work()) == set(found)


def test_in_a_clone_without_a_store_receipts_that_are_to_be_pulled_count_as_lost(project: Path) -> None:
    Path("mlflow.db").unlink()
    shutil.rmtree("data/records")
    shutil.rmtree(".dvc/cache")
    found = work()
    reasons = {found[f"record@{path.stem}"].reasons[-1] for path in Path("data/merged").iterdir()}
    assert reasons == {"MLflow's store mlflow.db is gone"}


def test_a_report_that_mlflow_lacks_is_recorded_again(project: Path) -> None:
    (copy,) = Path("mlartifacts").rglob("index.html")
    copy.unlink()
    found = work()
    assert set(found) == {"report"}
    assert found["report"].state is State.STALE
    assert found["report"].reasons[0].endswith("is not whole")
    shutil.rmtree("mlartifacts")
    assert set(work()) == {"report"}


def test_a_copy_of_the_report_that_differs_is_found(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (copy,) = Path("mlartifacts").rglob("index.html")
    copy.write_text("other")
    monkeypatch.setattr("sys.argv", ["merganser", "lineage", "verify"])
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code == 1
    said = capsys.readouterr().out
    assert said.endswith("report/index.html: not the report's file; remove it, run again\n")
    assert said.count("\n") == 1


def test_a_copy_of_a_comparison_is_judged_and_freed_by_its_own_artifacts(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    copied = Path(shutil.copytree(project, tmp_path / "another", symlinks=True))
    monkeypatch.chdir(copied)
    (copy,) = copied.glob("mlartifacts/**/index.html")
    copy.write_text("other")
    monkeypatch.setattr("sys.argv", ["merganser", "lineage", "verify"])
    with pytest.raises(SystemExit):
        main()
    assert "report/index.html: not the report's file" in capsys.readouterr().out
    freed = old_runs(store_here() or Path("none"), datetime.now(UTC) + timedelta(days=1), ()).folders
    assert freed
    assert all(folder.is_relative_to(copied) for folder in freed)


@pytest.mark.parametrize("content", [b"no database\n" * 100, bytes(5000)])
def test_a_damaged_store_is_named_before_anything_runs(project: Path, content: bytes) -> None:
    Path("mlflow.db").write_bytes(content)
    with pytest.raises(FailedError, match=r"MLflow's store mlflow\.db is damaged .*: move it away"):
        work()


def test_a_tracking_server_is_not_asked(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    assert work() == {}
