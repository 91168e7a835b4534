"""A node may rewrite and delete files of its clone: only a clone that was made a node on purpose is one."""

import shutil
import subprocess
from pathlib import Path

import pytest

from dvcfleet.errors import UserError
from dvcfleet.workspaces.nodes.clone import check_node, is_node, make_node
from tests.dvcfleet.toy import Make, Toy
from tests.support import python
from tests.tiny import environment

# `all` reads a folder whole that `one` writes into.
DVC_YAML = """
stages:
  one: {cmd: mkdir -p parts; cat source > parts/one, deps: [source], params: [size], outs: [parts/one]}
  all: {cmd: cat parts/* > all.txt, deps: [parts], outs: [all.txt]}
"""


@pytest.fixture
def clone(toy: Make) -> Toy:
    """A repository of which all is committed."""
    made = toy(DVC_YAML, {"source": "s", "params.yaml": "size: 1\n", "parts/README": "git's own"})
    commit(made.path)
    return made


def commit(folder: Path) -> None:
    user = ["-c", "user.name=somebody", "-c", "user.email=somebody@localhost"]
    subprocess.run(["git", *user, "add", "-A"], cwd=folder, check=True)
    subprocess.run(["git", *user, "commit", "-qm", "all"], cwd=folder, check=True)


def merganser(*args: str) -> "subprocess.CompletedProcess[str]":
    command = [*python(), "-m", "merganser.flows", *args]
    return subprocess.run(command, env=environment(), text=True, capture_output=True, check=False)


def test_a_clean_clone_becomes_a_node_and_is_no_place_for_a_run_then(clone: Toy) -> None:
    done = merganser("node", "init", str(clone.path))
    assert done.returncode == 0, done.stderr
    assert f"{clone.path} is a node now" in done.stdout
    assert merganser("node", "init", str(clone.path)).returncode == 0
    code, text = clone.run()
    assert code == 2
    assert f"{clone.path} is a node: " in text
    assert not (clone.path / "all.txt").exists()
    assert subprocess.run(["git", "status", "--porcelain"], cwd=clone.path, capture_output=True).stdout == b""
    shutil.rmtree(clone.path / ".dvcfleet/node")
    assert clone.run()[0] == 0


def test_a_copy_of_a_node_is_none(clone: Toy, toy: Make) -> None:
    make_node(clone.path)
    copy = toy.copy_of(clone)
    assert (is_node(clone.path), is_node(copy.path)) == (True, False)
    with pytest.raises(UserError, match=f"^{copy.path} is not a node; `dvcfleet node init {copy.path}`"):
        check_node(copy.path)
    assert copy.run()[0] == 0


@pytest.mark.parametrize(
    ("name", "text"),
    [("params.yaml", "size: 2\n"), ("notes", "mine"), ("all.txt", "not made by a stage"), ("parts/hidden", "mine")],
)
def test_a_clone_with_work_that_would_be_lost_is_refused_and_kept(clone: Toy, name: str, text: str) -> None:
    clone.write(".gitignore", "all.txt\nparts/hidden\n")
    commit(clone.path)
    clone.write(name, text)
    done = merganser("node", "init", str(clone.path))
    assert done.returncode == 2, done.stdout
    assert str(clone.path) in done.stderr
    assert f"has: {name};" in done.stderr
    assert clone.read(name) == text
    assert not is_node(clone.path)


def test_outputs_that_dvcs_cache_holds_are_no_reason_to_refuse(clone: Toy) -> None:
    assert clone.run()[0] == 0
    commit(clone.path)
    assert is_node(make_node(clone.path))
    clone.write("all.txt", "edited")
    with pytest.raises(UserError, match=r"has: all\.txt;"):
        make_node(clone.path)


def test_a_repository_without_git_is_no_node(tmp_path: Path) -> None:
    from dvc.repo import Repo

    Repo.init(str(tmp_path), no_scm=True).close()
    with pytest.raises(UserError, match="not a git repository"):
        make_node(tmp_path)
