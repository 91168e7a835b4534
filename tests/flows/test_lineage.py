"""The audit of the project's own pipeline on two tiny tasks: whence each number comes, and ten kinds of tampering."""

import json
import os
import shutil
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
import yaml

from dvcfleet.errors import UserError
from dvcfleet.lineage.audit import audit, look_up
from dvcfleet.lineage.findings import Finding, FindingKind
from flows.project import Merganser
from tests.dvcfleet.test_lineage import overwrite
from tests.flows.conftest import Done, Refused
from tests.tiny import dvc, is_clean, merganser


@pytest.fixture(scope="module")
def ran(tiny_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a copy of the tiny comparison's repository for these tests."""
    copy = Path(shutil.copytree(tiny_run, tmp_path_factory.mktemp("lineage") / "project", symlinks=True))
    dvc(copy, "status", "-q")  # so that DVC knows the copied files by their times, as it does after a run
    return copy


@pytest.fixture
def project(ran: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Give that repository, and take back what a test did to its files."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.chdir(ran)
    files = [*ran.glob("data/**/*"), *ran.glob("hub/**/*"), ran / "tasks/merge.py", ran / "params.yaml"]
    before = {path: (path.read_bytes(), path.stat()) for path in files if path.is_file()}
    with closing(sqlite3.connect(":memory:")) as saved, closing(sqlite3.connect(ran / "mlflow.db")) as store:
        store.backup(saved)
        yield ran
        saved.backup(store)
    for path, (content, info) in before.items():
        if path.read_bytes() != content:
            path.chmod(0o644)
            path.write_bytes(content)
            os.utime(path, ns=(info.st_atime_ns, info.st_mtime_ns))
            path.chmod(info.st_mode)


def findings(folder: Path, target: str | None = None) -> tuple[Finding, ...]:
    return audit(folder, target).findings


def test_an_untouched_project_is_silent_and_exits_with_0(project: Path, done: Done) -> None:
    said = merganser(project, "lineage", "verify")
    assert (said.stdout, said.stderr) == ("", "")
    counts = json.loads(done(project, "lineage", "verify", "--json"))
    assert counts["findings"] == []
    assert counts["stages"] > 30
    assert counts["size"] > 1e6


def test_lineage_is_shown_from_any_folder_of_the_project_by_paths_from_there(project: Path, done: Done) -> None:
    whole = done(project, "lineage", "show", "ties/dark")
    assert done(project / "hub", "lineage", "show", "ties/dark") == whole
    cell = done(project, "lineage", "show", "data/metrics/ties/dark.json").replace("data/metrics", "metrics")
    shown = done(project / "data", "lineage", "show", "metrics/ties/dark.json").replace("data/metrics", "metrics")
    assert shown == cell
    assert "merge@ties" in cell
    assert done(project / "data/merged", "lineage", "verify", "ties") == ""


def _flip(name: str) -> Callable[[Path], None]:
    return lambda folder: overwrite(folder / name)


def _score(folder: Path) -> None:
    run = json.loads((folder / "data/records/ties.json").read_text())["run_id"]
    with closing(sqlite3.connect(folder / "mlflow.db")) as connection, connection:
        for table in ("metrics", "latest_metrics"):
            where = "run_uuid = ? AND key = 'accuracy/dark'"
            connection.execute(f"UPDATE {table} SET value = value + 0.125 WHERE {where}", (run,))


def _param(folder: Path) -> None:
    params = yaml.safe_load((folder / "params.yaml").read_text())
    params["methods"]["ties"]["density"] = 0.4
    (folder / "params.yaml").write_text(yaml.safe_dump(params, sort_keys=False))


def _code(folder: Path) -> None:
    with (folder / "tasks/merge.py").open("a") as file:
        file.write("EDITED = 1\n")


TAMPERINGS = {
    "a source": (_flip("hub/dark/open_clip_model.safetensors"), FindingKind.SOURCE, "hub/dark"),
    "a checkpoint": (
        _flip("data/checkpoints/dark/model.safetensors"),
        FindingKind.CHANGED,
        "data/checkpoints/dark/model.safetensors",
    ),
    "a delta": (_flip("data/deltas/light.safetensors"), FindingKind.CHANGED, "data/deltas/light.safetensors"),
    "a factor": (lambda folder: overwrite(_factor(folder)), FindingKind.CHANGED, "data/svd/dark/"),
    "a merged model": (
        _flip("data/merged/average/model.safetensors"),
        FindingKind.CHANGED,
        "data/merged/average/model.safetensors",
    ),
    "an overlay": (
        _flip("data/merged/dts_d/overlays.safetensors"),
        FindingKind.CHANGED,
        "data/merged/dts_d/overlays.safetensors",
    ),
    "a metric": (_flip("data/metrics/ties/dark.json"), FindingKind.CHANGED, "data/metrics/ties/dark.json"),
    "an example's result": (
        _flip("data/examples/ties/dark.safetensors"),
        FindingKind.CHANGED,
        "data/examples/ties/dark.safetensors",
    ),
    "a receipt": (_flip("data/records/ties.json"), FindingKind.CHANGED, "data/records/ties.json"),
    "a score in MLflow": (_score, "MLflow differs", "run "),
    "a parameter": (_param, FindingKind.PARAMS, "params.yaml"),
    "code": (_code, FindingKind.CODE, "tasks"),
}


def _factor(folder: Path) -> Path:
    return sorted((folder / "data/svd/dark").glob("*.safetensors"))[0]


@pytest.mark.parametrize("what", TAMPERINGS)
def test_tampering_is_found_and_named_and_nothing_else_is(project: Path, what: str) -> None:
    tamper, kind, name = TAMPERINGS[what]
    tamper(project)
    found = findings(project)
    assert {one.kind for one in found} == {kind}, found
    assert any(one.name.startswith(name) for one in found)
    # A file and a link to it, as a joint has of its deltas, are two names of one change.
    assert len({one.message.partition(" wrote ")[2].partition(";")[0] for one in found}) == 1


def test_a_changed_byte_is_found_where_dvc_sees_nothing(project: Path) -> None:
    overwrite(project / "data/merged/average/model.safetensors")
    assert is_clean(project)
    assert findings(project) != ()


def test_a_score_in_mlflow_is_named_with_both_numbers(project: Path) -> None:
    value = json.loads((project / "data/metrics/ties/dark.json").read_text())["value"]
    _score(project)
    messages = " ".join(one.message for one in findings(project))
    assert "accuracy/dark" in messages
    assert repr(value) in messages
    assert repr(value + 0.125) in messages


def test_a_receipt_without_its_run_and_a_store_that_is_gone_are_found(project: Path) -> None:
    run = json.loads((project / "data/records/ties.json").read_text())["run_id"]
    with closing(sqlite3.connect(project / "mlflow.db")) as connection, connection:
        connection.execute("UPDATE runs SET lifecycle_stage = 'deleted' WHERE run_uuid = ?", (run,))
    (finding,) = findings(project)
    assert (finding.kind, finding.name) == ("no MLflow run", "data/records/ties.json")
    assert run in finding.message
    (project / "mlflow.db").rename(project / "elsewhere.db")
    try:
        assert [one.kind for one in findings(project)] == ["no MLflow run"]
    finally:
        (project / "elsewhere.db").rename(project / "mlflow.db")


def test_a_report_cell_a_run_and_a_metric_lead_to_the_same_checkpoints(project: Path) -> None:
    receipt = json.loads((project / "data/records/ties.json").read_text())
    value = json.loads((project / "data/metrics/ties/dark.json").read_text())["value"]
    cell, lineage = look_up(project, "ties/dark")
    assert cell.files == ("data/metrics/ties/dark.json",)
    assert float(cell.value) == value
    assert cell.stages == ("evaluate@ties-dark",)
    assert look_up(project, "data/metrics/ties/dark.json")[0].stages == cell.stages
    assert look_up(project, receipt["run_id"])[0].stages == ("record@ties",)
    assert look_up(project, receipt["parent_run_id"])[0].stages == ("report",)
    assert look_up(project, "ties")[0].stages == ("record@ties",)
    assert look_up(project, "ties/amr")[0].files == ("data/profiles/merge/ties.json",)
    for column in ("mean", "stderr"):
        assert set(look_up(project, f"ties/{column}")[0].stages) == {"evaluate@ties-dark", "evaluate@ties-light"}
    before = look_up(project, "regmean/before_s")[0].stages
    assert set(before) == {"statistics@gram-dark", "statistics@gram-light"}
    with pytest.raises(UserError, match='no such column of ties; did you mean "dark"'):
        look_up(project, "ties/drak")
    origins = {origin.path: origin for step in lineage.steps.values() for origin in step.origins}
    assert origins["data/checkpoints/dark"].source == "hub/dark"
    assert len(origins["data/checkpoints/dark"].files["model.safetensors"]["sha256"]) == 64
    assert lineage.steps["merge@ties"].params["params.yaml"]["methods.ties"]["density"] == 0.5
    assert all(step.execution for step in lineage.steps.values())


def test_the_text_names_source_checksum_command_commit_and_run(project: Path, done: Done, refused: Refused) -> None:
    text = done(project, "lineage", "show", "ties/dark")
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=project, capture_output=True, text=True, check=True)
    digest = json.loads((project / "data/base/source.json").read_text())["files"]["model.safetensors"]["sha256"]
    for word in ("merge@ties", "python -m tasks.merge @", "hub/base", digest, head.stdout.strip(), "flow run", "torch"):
        assert word in text
    assert 'did you mean "ties"?' in refused(project, "lineage", "show", "tise")


@pytest.mark.drill
def test_a_chain_run_again_has_the_same_bytes(project: Path) -> None:
    said = merganser(project, "lineage", "verify", "ties/dark", "--rerun")
    assert (said.stdout, said.stderr) == ("", "")


def test_of_a_group_of_data_sets_each_commit_is_named(tmp_path: Path) -> None:
    group = {name: {"hub": f"org/{name}", "revision": digit * 40} for name, digit in {"arc": "a", "mmlu": "b"}.items()}
    about = {"source": "sources/data.yaml", "kind": "hub", "group": group, "files": {}}
    (tmp_path / "source.json").write_text(json.dumps(about))
    found = Merganser().origin(tmp_path)
    assert found is not None
    assert found.revision == f"org/arc@{'a' * 40}, org/mmlu@{'b' * 40}"
