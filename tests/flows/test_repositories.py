"""A comparison in a repository of its own: begun by the package, run, reproduced by DVC, brought to other code."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from merganser.errors import InputError
from merganser.flows.repositories import dvc_yaml, init, update
from merganser.tasks.code_record import RECORD
from tests.drills.repro import hashes
from tests.tiny import ROOT, dvc, environment, is_clean, make_models, merganser
from tests.tiny_clip import write_data_set


def git(folder: Path, *args: str) -> str:
    return subprocess.run(["git", *args], cwd=folder, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def begun(tmp_path: Path) -> Path:
    """Begin a comparison, and give it tiny models, data and choices."""
    folder = tmp_path / "mine"
    init(folder, "image")
    shutil.rmtree(folder / "examples")
    params = yaml.safe_load((ROOT / "tests/tiny/params.yaml").read_text())
    sections = ("seed", "base", "parameters", "tasks", "decompose", "merge", "evaluation")
    few = {key: params[key] for key in sections} | {"methods": {"ties": params["methods"]["ties"]}}
    (folder / "params.yaml").write_text(yaml.safe_dump(few, sort_keys=False))
    make_models(folder / "hub")
    for seed, task in enumerate(("dark", "light")):
        write_data_set(folder / "datasets" / task, {"validation": 6, "test": 9 + seed})
    return folder


def test_a_comparison_begins_with_the_users_files_alone_and_a_commit(tmp_path: Path) -> None:
    (said,) = init(tmp_path / "demo", "image")
    assert said.startswith(f"{tmp_path}/demo: the comparison image")
    kept = set(git(tmp_path / "demo", "ls-files").splitlines())
    assert {"params.yaml", "dvc.yaml", "profiles.yaml", "prefect.yaml", "README.md", str(RECORD)} <= kept
    assert not [name for name in kept if name.startswith(("merganser/", "tasks/", "flows/", "dvcfleet/", "suites/"))]
    assert git(tmp_path / "demo", "status", "--porcelain") == ""
    assert f"deps: [{RECORD}]\n" in (tmp_path / "demo/dvc.yaml").read_text()
    (tmp_path / "demo/dvc.yaml").write_text("stages: {}\n")
    with pytest.raises(InputError, match=r"dvc\.yaml: has changes that are in no commit"):
        update(tmp_path / "demo")
    with pytest.raises(InputError, match="demo: "):
        init(tmp_path / "demo", "image")
    with pytest.raises(InputError, match=r"no suite is called 'imgae'.*did you mean \"image\""):
        init(tmp_path / "other", "imgae")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["demo"]


def test_in_a_git_repository_it_becomes_a_part_of_it(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    said = init(tmp_path / "study/first", "image")
    assert said[1] == f"it is in the git repository {tmp_path}, uncommitted"
    assert not (tmp_path / "study/first/.git").exists()
    assert dvc(tmp_path / "study/first", "root") == ".\n"


@pytest.mark.drill
def test_it_runs_and_dvc_alone_reproduces_it(begun: Path, tmp_path: Path) -> None:
    shutil.copytree(begun, tmp_path / "copy", symlinks=True)
    done = merganser(begun, "run", "--workers", "2")
    assert (begun / "report/index.html").is_file(), done.stdout
    assert is_clean(begun)
    dvc(tmp_path / "copy", "repro", "--quiet")
    assert hashes(tmp_path / "copy") == hashes(begun)
    assert "nothing has changed" in merganser(begun, "lineage", "verify").stdout
    assert update(begun)[-1].endswith(": nothing changes")


@pytest.mark.drill
def test_results_of_other_code_are_refused_until_an_update(begun: Path) -> None:
    assert merganser(begun, "run", "code").returncode == 0
    # As by another version, whose ties was other code.
    record = json.loads((begun / RECORD).read_text())
    record["code"]["methods/ties.txt"] = "0" * 64
    (begun / RECORD).write_text(json.dumps(record | {"version": "0.0.9"}))
    refused = merganser(begun, "run", check=False)
    assert refused.returncode == 2
    assert "by Merganser 0.0.9" in refused.stdout + refused.stderr
    assert "has other code of methods/ties; `merganser update` says" in refused.stdout + refused.stderr
    command = ["dvc", "repro", "--single-item", "code"]
    plain = subprocess.run(command, cwd=begun, env=environment(), capture_output=True, text=True, check=False)
    assert "`merganser update`" in plain.stdout + plain.stderr
    assert plain.returncode != 0
    (begun / "dvc.yaml").write_text("stages: {}\n")
    git(begun, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "edited", "dvc.yaml")
    said = update(begun)
    assert said[0].startswith("from Merganser 0.0.9 to ")
    assert said[1:] == [
        "changed: the code of methods/ties",
        "written anew: dvc.yaml",
        "`merganser run --dry-run` says what will run again",
    ]
    assert (begun / "dvc.yaml").read_text() == dvc_yaml()
    assert "1 restored" in merganser(begun, "run", "code").stdout  # the record is the one of this code again


def test_a_clone_needs_no_update(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="a clone of Merganser's runs its own code"):
        update(tmp_path)
    begun = tmp_path / "demo"
    init(begun, "image")
    for text in ("", "[]", '{"format": 9, "version": "9.0.0", "code": {}}', '{"format": 1}'):
        (begun / RECORD).write_text(text)
        with pytest.raises(InputError, match=f"{RECORD}: "):
            update(begun)
