"""The project's own dvc.yaml on two tiny tasks, by the flow and by DVC itself."""

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.tiny import dvc, environment, make_repository, merganser

OF_TIES = {"merge@ties", "evaluate@ties-dark", "evaluate@ties-light", "measure_merged@ties", "record@ties", "report"}
IMPURE = ("data/profiles/", "data/records/", "report", "metrics.json")  # times, run numbers, and what shows them


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a repository whose comparison has been run by the flow."""
    folder = make_repository(tmp_path_factory.mktemp("pipeline") / "flow")
    merganser(folder, "run", "--workers", "1")  # the killed run has two, and ends with the same hashes
    return folder


@pytest.fixture
def copy(ran: Path, tmp_path: Path) -> Path:
    """Give a copy of it to change."""
    return Path(shutil.copytree(ran, tmp_path / "copy", symlinks=True))


def hashes(folder: Path) -> dict[str, Any]:
    lock = yaml.safe_load((folder / "dvc.lock").read_text())["stages"]
    return {
        f"{name} {out['path']}": out["md5"]
        for name, stage in lock.items()
        for out in stage.get("outs", [])
        if not out["path"].startswith(IMPURE)
    }


def stale(folder: Path) -> set[str]:
    stages = json.loads(merganser(folder, "status", "--json").stdout)["stages"]
    return {stage["name"] for stage in stages if stage["state"] != "up to date"}


def test_the_flow_leaves_a_clean_dvc_status_and_a_report(ran: Path) -> None:
    assert json.loads(dvc(ran, "status", "--json")) == {}
    assert (ran / "report/index.html").is_file()
    assert set(json.loads((ran / "metrics.json").read_text()))
    assert stale(ran) == set()


def test_a_second_run_starts_no_stage(ran: Path) -> None:
    before = (ran / "dvc.lock").read_bytes()
    said = merganser(ran, "run").stdout
    assert "nothing to do" in said.lower()
    assert (ran / "dvc.lock").read_bytes() == before


@pytest.mark.slow
def test_dvc_repro_writes_the_same_hashes_and_then_finds_nothing_to_do(ran: Path, tmp_path: Path) -> None:
    folder = make_repository(tmp_path / "dvc")
    dvc(folder, "repro", "-q")
    assert hashes(folder) == hashes(ran)
    assert "Data and pipelines are up to date" in dvc(ran, "repro")


@pytest.mark.slow
def test_a_run_killed_at_random_moments_ends_with_the_same_hashes(ran: Path, tmp_path: Path) -> None:
    folder = make_repository(tmp_path / "killed")
    moments = random.Random(0)
    for _ in range(3):
        kill_run(folder, after=moments.uniform(6, 20))
    merganser(folder, "run", "--workers", "2")
    assert hashes(folder) == hashes(ran)
    assert json.loads(dvc(folder, "status", "--json")) == {}


def kill_run(folder: Path, after: float) -> None:
    """Start a run and kill its whole process group with SIGKILL after some seconds."""
    command = [sys.executable, "-m", "flows", "run", "--workers", "2"]
    with subprocess.Popen(
        command, cwd=folder, env=environment(), start_new_session=True, stdout=subprocess.DEVNULL
    ) as process:
        try:
            process.wait(after)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)


def test_a_changed_parameter_reruns_its_entry_and_nothing_else(copy: Path) -> None:
    params = yaml.safe_load((copy / "params.yaml").read_text())
    params["methods"]["ties"]["density"] = 0.4
    (copy / "params.yaml").write_text(yaml.safe_dump(params, sort_keys=False))
    assert stale(copy) == OF_TIES


def test_an_edited_method_reruns_its_entry_and_nothing_else(copy: Path) -> None:
    with (copy / "merganser/methods/ties.py").open("a") as file:
        file.write("# edited\n")
    assert stale(copy) == OF_TIES


def test_a_removed_task_joints_and_difference_vectors_leave_the_workspace(copy: Path) -> None:
    params = yaml.safe_load((copy / "params.yaml").read_text())
    del params["tasks"]["light"], params["differences"]["from_average"], params["joints"]["rows"]
    params["methods"] = {"average": params["methods"]["average"]}
    (copy / "params.yaml").write_text(yaml.safe_dump(params, sort_keys=False))
    merganser(copy, "run", "--workers", "1")
    assert not list(copy.glob("data/**/light*"))
    assert not (copy / "data/differences").exists()
    assert not (copy / "data/joints").exists()
    assert json.loads(dvc(copy, "status", "--json")) == {}


def test_without_a_base_the_tasks_models_are_fetched_first(tmp_path: Path) -> None:
    folder = make_repository(tmp_path / "baseless")
    params = yaml.safe_load((folder / "params.yaml").read_text())
    params["base"]["source"] = "data/checkpoints"
    params["studies"]["tasks"]["methods"] = {}
    (folder / "params.yaml").write_text(yaml.safe_dump(params, sort_keys=False))
    planned = merganser(folder, "run", "--dry-run", "fetch_base").stdout
    *first, last = re.findall(r"^(\S+): stale", planned, re.M)
    assert sorted(first) == ["fetch@dark", "fetch@light"]  # in any order
    assert last == "fetch_base"
