"""Files that no stage wrote are found although DVC's ignore rules hide them, unless these rules are older."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from dvcfleet.lineage.audit import audit
from tests.dvcfleet.toy import Make, Toy

STAGES = """
stages:
  make:
    cmd: mkdir -p data/made; cp source/* data/made; echo log > data/made/run.log
    deps: [source]
    outs: [data/made]
  read:
    cmd: cat data/*/a > all
    deps: [data]
    outs: [all]
"""
FILES = {"source/a": "a", ".dvcignore": "*.log\n", ".gitignore": "/data\n/all\n"}


def _commit(toy: Toy) -> None:
    git = ["git", "-C", str(toy.path), "-c", "user.name=T", "-c", "user.email=t@example.org"]
    subprocess.run([*git, "add", "."], check=True)
    subprocess.run([*git, "commit", "-qm", "all"], check=True)


@pytest.fixture
def ran(toy: Make) -> Toy:
    """Give a repository that ran with a rule that ignores logs, which one of its stages writes into its output."""
    return toy.ran(STAGES, FILES, before=_commit)


def found(toy: Toy) -> list[str]:
    return sorted(finding.name for finding in audit(toy.path).findings)


def test_a_file_that_an_older_rule_hides_is_no_finding(ran: Toy) -> None:
    assert (ran.path / "data/made/run.log").exists()
    assert found(ran) == []
    ran.write("data/made/more.log", "")
    assert found(ran) == []


def _rule(line: str, file: str = ".dvcignore") -> Callable[[Toy], None]:
    return lambda toy: toy.write(file, f"{FILES.get(file, '')}{line}\n")


def _committed(toy: Toy) -> None:
    _rule("planted")(toy)
    _commit(toy)


@pytest.mark.parametrize(
    "hide",
    [_rule("planted"), _rule("/data/made/planted"), _rule("planted\n.dvcignore", "data/made/.dvcignore"), _committed],
)
def test_a_file_that_a_newer_rule_hides_is_named(ran: Toy, hide: Callable[[Toy], None]) -> None:
    ran.write("data/made/planted", "b")
    hide(ran)
    assert "data/made/planted" in found(ran)


def test_what_is_hidden_in_folders_that_stages_read_is_named_too(ran: Toy) -> None:
    ran.write("source/planted", "b")
    ran.write("data/other/a", "b")
    _rule("planted\n/data/other")(ran)
    assert found(ran) == ["data/other/a", "source/planted"]


def test_a_link_to_a_folder_which_dvc_does_not_list_is_named(ran: Toy) -> None:
    os.symlink(ran.path / "source", ran.path / "data/made/more")
    assert found(ran) == ["data/made/more"]


def test_without_a_commit_no_rule_hides_a_file(toy: Make) -> None:
    made = toy.ran(STAGES, FILES)
    assert found(made) == ["data/made/run.log"]


def test_a_path_of_a_repository_below_the_root_of_git_follows_the_same_rules(toy: Make, tmp_path: Path) -> None:
    made = toy(STAGES, FILES, name="below")
    subprocess.run(["rm", "-rf", str(made.path / ".git")], check=True)
    subprocess.run(["git", "init", "-q", str(made.path.parent)], check=True)
    _commit(made)
    assert made.run()[0] == 0
    assert found(made) == []
    made.write("data/made/planted", "b")
    _rule("planted")(made)
    assert found(made) == ["data/made/planted"]
