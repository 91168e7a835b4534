"""A comparison that ran in a clone of version 0.1.0 is taken out of it: nothing runs again, and its audit is silent."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from dvcfleet.repository import opened
from merganser.errors import InputError
from merganser.flows.commands.from_clone import refuse_other_folders
from tests.tasks.test_texts import write_sources
from tests.tiny import ROOT, environment, is_clean, merganser

OLD = "cf65acac6d"  # version 0.1.0: the stages were `python -m tasks.X`, and depended on listings of code
AGAIN = {"fetch_data", "prepare", "evaluate", "name_classes", "record", "report"}  # as CHANGELOG.md says
PARAMS = {
    "seed": 0,
    "base": {"source": "sources/base", "family": "encoder", "heads": ["classifier.*"]},
    "parameters": {"merged": ["roberta.encoder.*"], "matrices": "linear"},
    "tasks": {
        "linked": {
            "source": "sources/linked",
            "kind": "text_classification",
            "data": {"source": "sources/linked-data"},
        },
        "graded": {"source": "sources/graded", "kind": "regression", "data": {"source": "sources/graded-data"}},
    },
    "decompose": {"rank_fraction": 1.0, "dtype": "float32"},
    "methods": {
        "individual": {"method": "individual", "reads": "deltas"},
        "ties": {"method": "ties", "reads": "deltas"},
        "tsv_m": {"method": "tsv_m", "reads": "svd"},
    },
    "evaluation": {"split": "test", "batch_size": 16},
}


def old(clone: Path, *args: str) -> str:
    """Run a command by the clone's own code."""
    command = [sys.executable, "-m", "flows", *args]
    return subprocess.run(
        command, cwd=clone, env=environment() | {"PYTHONPATH": str(clone)}, check=True, capture_output=True, text=True
    ).stdout


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """Run a comparison in a clone at version 0.1.0."""
    folder = tmp_path / "clone"
    subprocess.run(["git", "clone", "-q", "--shared", str(ROOT), str(folder)], check=True)
    subprocess.run(["git", "checkout", "-q", OLD], cwd=folder, check=True)
    write_sources(folder / "sources")
    (folder / "params.yaml").write_text(yaml.safe_dump(PARAMS, sort_keys=False))
    author = {f"GIT_{who}_{what}": "a@b" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    for command in (["add", "params.yaml"], ["commit", "-qm", "Mine"]):
        subprocess.run(["git", *command], cwd=folder, check=True, env=os.environ | author)
    old(folder, "run", "--workers", "2")
    return folder


@pytest.mark.drill
def test_nothing_runs_again_but_what_the_changelog_names_and_the_audit_is_silent(clone: Path, tmp_path: Path) -> None:
    assert "nothing has changed" in old(clone, "lineage", "verify")
    runs = old(clone, "history")
    said = merganser(tmp_path, "init", "--from", "clone", "mine").stdout
    mine = tmp_path / "mine"
    assert not (mine / "merganser").exists()
    done = merganser(mine, "run", "--workers", "2").stdout
    assert {name.partition("@")[0] for name in re.findall(r"(\S+) done in", done)} <= AGAIN, said + done
    assert is_clean(mine)
    assert "nothing has changed" in merganser(mine, "lineage", "verify").stdout
    assert runs.splitlines()[0].split()[-1] in merganser(mine, "history").stdout
    assert "tasks.merge" in merganser(mine, "lineage", "show", "ties").stdout
    with opened(mine) as repo:
        assert all("merganser.tasks" in str(stage.cmd) for stage in repo.index.stages if stage.cmd)
    assert "nothing has changed" in old(clone, "lineage", "verify")  # the clone is as it was


def test_the_examples_that_make_its_models_come_along(tmp_path: Path) -> None:
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "-q", "--shared", str(ROOT), str(clone)], check=True)
    for lock in ("dvc.lock", "examples/suite/dvc.lock"):
        (clone / lock).write_text("schema: '2.0'\nstages: {}\n")
    merganser(tmp_path, "init", "--from", "clone", "mine")
    mine = tmp_path / "mine"
    for file in ("examples/suite/pretrain.py", "examples/suite/dvc.lock", "examples/.dvcignore"):
        assert (mine / file).read_bytes() == (clone / file).read_bytes()
    assert (mine / "examples/common").is_dir()
    assert not (mine / "examples/texts").exists()
    with opened(mine) as repo:
        assert any(stage.addressing == "examples/suite/dvc.yaml:pretrain" for stage in repo.index.stages)


def test_what_is_no_clone_that_ran_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no clone of Merganser with a comparison"):
        refuse_other_folders(tmp_path)
    (tmp_path / "dvc.yaml").write_text("stages: {}\n")
    with pytest.raises(InputError, match=r"has no params\.yaml: nothing ran there"):
        refuse_other_folders(tmp_path)
