"""Another comparison beside this one, a worktree with the same cache and choices of its own; coming back to a suite."""

import os
import subprocess
from contextlib import chdir
from pathlib import Path

import pytest
import yaml
from dvc.repo import Repo

from dvcfleet.dvc_adapter.lockfiles import read_lock_file
from merganser.errors import InputError
from merganser.flows.comparisons import draft_of, new
from merganser.flows.suite_files import without_head
from merganser.flows.suites import use
from merganser.outputs import one_writer
from tests.flows.conftest import Done, Refused
from tests.tiny import ROOT

TINY = (ROOT / "tests/tiny/params.yaml").read_text()
OTHER = TINY.replace("seed: 0", "seed: 1")
STAGES = {
    "stages": {
        "seeded": {"cmd": "mkdir -p data && echo ${seed} > data/seeded", "outs": [{"data/seeded": {"persist": True}}]},
        "merge": {
            "foreach": "${methods}",
            "do": {
                "cmd": "mkdir -p data/merged && echo ${key} ${seed} > data/merged/${key}",
                "outs": ["data/merged/${key}"],
            },
        },
    },
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A committed repository of git and DVC with two suites, the first in use, and models that git does not keep."""
    root = tmp_path / "root"
    for name, text in (("one", TINY), ("two", OTHER)):
        (root / "suites").mkdir(parents=True, exist_ok=True)
        (root / f"suites/{name}.yaml").write_text(text)
    (root / "params.yaml").write_text(TINY)
    (root / "dvc.yaml").write_text(yaml.safe_dump(STAGES))
    for name in ("hub/base", "hub/dark", "hub/light", "datasets/dark"):
        (root / name).mkdir(parents=True)
    subprocess.run(["git", "init", "-q"], cwd=root, check=True)
    Repo.init(str(root)).close()
    git(root, "add", "suites", "params.yaml", "dvc.yaml", ".dvc/config", ".dvc/.gitignore")
    git(root, "commit", "-qm", "all")
    return root


def reproduce(root: Path) -> None:
    with chdir(root), Repo() as repo:
        repo.reproduce()


def git(root: Path, *args: str) -> str:
    command = ["git", "-C", str(root), "-c", "user.name=T", "-c", "user.email=t@example.org", *args]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def test_a_new_comparison_shares_cache_and_history_and_has_choices_of_its_own(root: Path, tmp_path: Path) -> None:
    (root / "params.yaml").write_text(TINY.replace("seed: 0", "seed: 7"))
    said = new(root, tmp_path / "beside")
    beside = tmp_path / "beside"
    assert (beside / "params.yaml").read_text() == (root / "params.yaml").read_text()
    with Repo(str(root)) as here, Repo(str(beside)) as there:
        assert there.cache.local.path == here.cache.local.path == str(root / ".dvc/cache/files/md5")
        assert there.tmp_dir != here.tmp_dir
    assert git(beside, "rev-parse", "HEAD", "--abbrev-ref", "HEAD").split() == [
        git(root, "rev-parse", "HEAD").strip(),
        "beside",
    ]
    assert not any("without the changes" in line for line in said)


def test_models_that_git_does_not_keep_are_linked(root: Path, tmp_path: Path) -> None:
    said = new(root, tmp_path / "beside")
    assert (tmp_path / "beside/hub/base").resolve() == root / "hub/base"
    assert not (tmp_path / "beside/datasets/light").exists()  # nor does it here
    assert sum("leads to this comparison's" in line for line in said) == 4


def test_changes_of_code_that_are_in_no_commit_are_named(root: Path, tmp_path: Path) -> None:
    (root / "dvc.yaml").write_text((root / "dvc.yaml").read_text() + "# more\n")
    assert new(root, tmp_path / "beside")[-1].endswith("without the changes here of dvc.yaml")


def test_a_new_comparison_begins_with_a_suite(root: Path, tmp_path: Path, done: Done) -> None:
    assert "merganser run" in done(root, "new", str(tmp_path / "beside"), "--suite", "two")
    assert without_head((tmp_path / "beside/params.yaml").read_text()) == OTHER
    assert (root / "params.yaml").read_text() == TINY


@pytest.mark.parametrize(
    ("place", "suite", "message"),
    [
        ("root/inside", None, "lies in this comparison"),
        ("root", None, "exists already"),
        ("beside", "tow", 'no suite is called .tow.; did you mean "two"'),
        ("taken", None, "git refuses: .*taken.* already exists"),
    ],
)
def test_what_cannot_begin_is_refused_and_leaves_nothing(
    root: Path, tmp_path: Path, place: str, suite: str | None, message: str
) -> None:
    git(root, "branch", "taken")
    with pytest.raises(InputError, match=message):
        new(root, tmp_path / place, suite)
    assert len(git(root, "worktree", "list").splitlines()) == 1


def test_of_two_that_begin_in_one_folder_the_second_is_refused(root: Path, tmp_path: Path) -> None:
    said = f"beside: process {os.getpid()} is writing it"
    with one_writer(tmp_path / "beside"), pytest.raises(InputError, match=said):
        new(root, tmp_path / "beside")
    assert [path.name for path in tmp_path.iterdir()] == ["root"]


@pytest.mark.parametrize("branch", [["--detach"], ["-b", "beside"]])
def test_one_whose_start_was_killed_begins_afresh(root: Path, tmp_path: Path, branch: list[str]) -> None:
    git(root, "worktree", "add", *branch, str(draft_of(tmp_path / "beside")))
    (tmp_path / "beside").mkdir()
    new(root, tmp_path / "beside", "two")
    assert without_head((tmp_path / "beside/params.yaml").read_text()) == OTHER
    assert git(tmp_path / "beside", "branch", "--show-current") == "beside\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["beside", "root"]
    assert len(git(root, "worktree", "list").splitlines()) == 2


def test_a_start_that_fails_leaves_neither_worktree_nor_branch(root: Path, tmp_path: Path) -> None:
    (root / ".dvc/config.local").write_text("[no configuration")
    with pytest.raises(Exception, match=r"config|section"):
        new(root, tmp_path / "beside")
    assert [path.name for path in tmp_path.iterdir()] == ["root"]
    assert (len(git(root, "worktree", "list").splitlines()), git(root, "branch", "--list", "beside")) == (1, "")


def test_a_repository_without_a_commit_is_refused(tmp_path: Path, refused: Refused) -> None:
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    Repo.init(str(tmp_path)).close()
    assert "git has no commit" in refused(tmp_path, "new", str(tmp_path.parent / "beside"))


def test_coming_back_to_a_suite_finds_all_that_was_computed_of_it(root: Path) -> None:
    reproduce(root)
    first = read_lock_file(root / "dvc.lock")
    use(root, "two")
    reproduce(root)
    second = read_lock_file(root / "dvc.lock")
    assert first["seeded"] != second["seeded"]
    use(root, "one")
    assert read_lock_file(root / "dvc.lock") == first
    with Repo(str(root)) as repo:
        repo.checkout(force=True)
        assert repo.status() == {}
    assert (root / "data/seeded").read_text() == "0\n"
    use(root, "two")
    assert read_lock_file(root / "dvc.lock") == second
