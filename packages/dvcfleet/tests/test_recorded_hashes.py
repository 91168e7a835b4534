"""Stages judged by dvc.lock where their data is only on the DVC remote."""

import shutil
from contextlib import chdir

import pytest
from dvc.repo import Repo

from dvcfleet.planning.plan import make_plan
from dvcfleet.workspaces.nodes.node import present_run_key
from dvcfleet.workspaces.nodes.object_store import ObjectStore
from dvcfleet.workspaces.nodes.workspace import RecordedHashes
from tests.dvcfleet.toy import Make, Toy
from tests.tiny import dvc

DVC_YAML = """
stages:
  part:
    foreach: [a, b]
    do: {cmd: "mkdir -p part; cat ${item} > part/${item}", deps: ["${item}"], outs: ["part/${item}"]}
  folder: {cmd: mkdir folder; cat a > folder/file, deps: [a], outs: [folder]}
  whole: {cmd: cat part/* > whole.txt, deps: [part], outs: [whole.txt]}
  within: {cmd: cat folder/file > within.txt, deps: [folder/file], outs: [within.txt]}
  other: {cmd: cat part/b > other.txt, deps: [part/b], outs: [other.txt]}
  again: {cmd: cat a > again.txt, deps: [a], outs: [again.txt], meta: {dvcfleet: {restore: false}}}
"""


def states(toy: Toy) -> dict[str, str]:
    with chdir(toy.path), Repo() as repo:
        store = ObjectStore(repo, print)
        store.open()
        found = make_plan(repo, checks_for=RecordedHashes(repo, store).checks_for)
    return {name: stage.state.value for name, stage in found.planned.items()}


@pytest.fixture
def pushed(toy: Make) -> Toy:
    """A repository whose data is on a remote, in neither the workspace nor the cache."""
    made = toy(DVC_YAML, {"a": "1", "b": "1"})
    assert made.run()[0] == 0
    dvc(made.path, "remote", "add", "-q", "-d", "store", str(made.path.parent / "remote"))
    move_data(made)
    return made


def move_data(toy: Toy) -> None:
    """Push all outputs, and remove them here."""
    dvc(toy.path, "push", "-q")
    shutil.rmtree(toy.path / ".dvc/cache")
    for name in ("part", "folder"):
        shutil.rmtree(toy.path / name, ignore_errors=True)
    for path in toy.path.glob("*.txt"):
        path.unlink()


def test_all_is_up_to_date_without_the_data(pushed: Toy) -> None:
    assert set(states(pushed).values()) == {"up to date"}


def test_a_change_in_a_folder_is_seen_without_the_data_where_dvc_sees_none(pushed: Toy) -> None:
    pushed.write("a", "2")
    dvc(pushed.path, "repro", "-q", "part@a", "folder", "again")
    move_data(pushed)
    assert "Data and pipelines are up to date" in dvc(pushed.path, "repro", "--dry", "--allow-missing")
    stale = {name for name, state in states(pushed).items() if state == "stale"}
    assert stale == {"whole", "within"}


@pytest.mark.parametrize("content", [None, b"[", b"[]"], ids=["gone", "torn", "other"])
def test_a_folder_whose_listing_the_remote_lost_is_made_again(pushed: Toy, content: bytes | None) -> None:
    listing = next(path for path in (pushed.path.parent / "remote/files").rglob("*.dir"))
    listing.unlink()
    if content is not None:
        listing.write_bytes(content)
        listing.chmod(0o444)
        assert states(pushed)["within"] == "stale"  # this reads the listing, and notices
    stale = {name for name, state in states(pushed).items() if state != "up to date"}
    assert stale == {"folder", "within"}


def test_a_stage_that_may_not_be_restored_is_in_no_nodes_run_cache(toy: Make) -> None:
    made = toy(DVC_YAML, {"a": "1", "b": "1"})
    with chdir(made.path), Repo() as repo:
        for name, kept in {"part@a": True, "again": False}.items():
            stage = repo.stage.load_one("dvc.yaml", name)
            stage.save_deps()
            assert bool(present_run_key(stage, ())) is kept
