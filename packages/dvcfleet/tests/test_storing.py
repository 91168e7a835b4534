"""What a run leaves in DVC's cache, run cache and state is what `dvc repro` leaves."""

import os
import sqlite3
import stat
from contextlib import chdir, closing
from pathlib import Path

import pytest
from dvc.exceptions import ReproductionError
from dvc.repo import Repo

from dvcfleet.repository import opened
from tests.dvcfleet.toy import Make, Toy

KINDS = """
stages:
  file: {cmd: echo 1 > made/file, deps: [source], outs: [made/file]}
  again: {cmd: echo 1 > made/again, deps: [source], outs: [made/again]}
  folder: {cmd: mkdir made/folder; echo 2 > made/folder/a; echo 1 > made/folder/b, deps: [source], outs: [made/folder]}
  script: {cmd: "echo '#!/bin/sh' > made/script; chmod 755 made/script", deps: [source], outs: [made/script]}
  secret: {cmd: echo 3 > made/secret; chmod 600 made/secret, deps: [made/file], outs: [made/secret]}
  empty: {cmd: touch made/empty, deps: [made/folder], outs: [made/empty]}
  score: {cmd: "echo '{\\"a\\": 1}' > made/score.json", deps: [made/file], metrics: [made/score.json]}
  bare: {cmd: "echo 4 > made/bare", deps: [source], outs: [made/bare: {cache: false}]}
  link: {cmd: ln -s file made/link, deps: [made/file], outs: [made/link]}
  kept: {cmd: echo 5 > made/kept, deps: [source], outs: [made/kept: {persist: true}]}
  two: {cmd: echo 6 > made/one; echo 7 > made/two, deps: [source], params: [x.y], outs: [made/one, made/two]}
  free: {cmd: echo 8 > made/free, outs: [made/free]}
"""
FILES = {"source": "s", "made/here": "", "params.yaml": "x: {y: {z: [1, 2.5, 'true']}}\n"}


def files_below(folder: Path) -> dict[str, tuple[str, bytes]]:
    """The mode and the bytes of each file."""
    return {
        str(path.relative_to(folder)): (stat.filemode(os.lstat(path).st_mode), path.read_bytes())
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def state_of(repository: Path) -> tuple[set[str], set[str]]:
    """The files whose hashes, and those whose links DVC's state knows."""
    with chdir(repository), Repo() as repo:
        folders = repo.state.hashes.directory, repo.state.links.directory
    known = []
    for folder in folders:
        with closing(sqlite3.connect(Path(folder) / "cache.db")) as connection:
            known.append(
                {str(key).replace(str(repository), "") for (key,) in connection.execute("SELECT key FROM Cache")}
            )
    return known[0], known[1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("links", "large_bytes"), [("copy", 0), ("copy", 100), ("hardlink", 0), ("symlink", 100), ("reflink,copy", 100)]
)
def test_all_kinds_of_outputs_are_stored_as_dvc_repro_stores_them(
    toy: Make, monkeypatch: pytest.MonkeyPatch, links: str, large_bytes: int
) -> None:
    # From 0 bytes on, all are stored in threads.
    monkeypatch.setattr("dvcfleet.workspaces.local.LARGE_BYTES", large_bytes)
    ours, theirs = toy(KINDS, FILES, "ours"), toy(KINDS, FILES, "theirs")
    for repository in (ours, theirs):
        with chdir(repository.path), Repo() as repo, repo.config.edit() as config:
            config["cache"]["type"] = links.split(",")
    code, text = ours.run(workers=4 if large_bytes == 0 else 1)
    assert code == 0, text
    with chdir(theirs.path), Repo() as repo:
        repo.reproduce()
    for folder in (".dvc/cache", "made"):
        assert files_below(ours.path / folder) == files_below(theirs.path / folder)
    assert ours.read("dvc.lock") == theirs.read("dvc.lock")
    assert known_to(ours) == known_to(theirs)
    assert ours.settled()


def test_storing_what_another_run_has_just_stored_leaves_that_runs_output_and_the_object_whole(toy: Make) -> None:
    other, own = (toy("stages: {a: {cmd: echo 1 > x, outs: [x]}}", {}, name) for name in ("other", "own"))
    with chdir(other.path), Repo() as repo, repo.config.edit() as config:
        config["cache"]["type"] = ["hardlink"]
    assert other.run()[0] == 0
    own.write("x", "1\n")
    with opened(other.path) as repo:
        (out,) = (out for stage in repo.index.stages for out in stage.outs)
        path = Path(repo.cache.local.oid_to_path(out.hash_info.value))
        # As DVC does where the object was not there when it looked.
        repo.cache.local.add(str(own.path / "x"), repo.fs, out.hash_info.value, hardlink=True, check_exists=False)
        assert (other.read("x"), path.read_text()) == ("1\n", "1\n")
        assert list(path.parent.iterdir()) == [path]


def known_to(repository: Toy) -> set[str]:
    """The links that DVC's state knows, and the hashes of files in the workspace."""
    hashes, links = state_of(repository.path)
    return links | {name for name in hashes if not name.startswith("/.dvc/")}


def test_an_output_that_git_tracks_is_refused(toy: Make) -> None:
    tracked = toy("stages: {a: {cmd: echo 1 > x, outs: [x]}, b: {cmd: echo 2 > y, outs: [y]}}", {"x": "0"})
    with chdir(tracked.path), Repo() as repo:
        repo.scm.add(["x"])
    code, text = tracked.run()
    assert code == 1
    assert "output 'x' is already tracked by SCM" in text
    assert "1 done, 1 failed" in text


# Stages that change their own inputs: a folder that gains a file, one that loses one, a file, a parameter; and a link.
CHANGE = """
stages:
  gains: {cmd: "echo 1 > src/new; echo 1 > gains", deps: [src], outs: [gains]}
  loses: {cmd: "rm old/gone; touch old/stays; echo 1 > loses", deps: [old], outs: [loses]}
  file: {cmd: "echo more >> text; echo 1 > file", deps: [text, other], outs: [file]}
  back: {cmd: "cp same copy; rm same; mv copy same; echo 1 > back", deps: [same], outs: [back]}
  params: {cmd: "echo 'x: 2' > own.yaml; echo 1 > params", params: [own.yaml: [x]], outs: [params]}
  lost: {cmd: "rm lost.txt; echo 1 > lost", deps: [lost.txt], outs: [lost]}
"""
CHANGE_FILES = {
    **dict.fromkeys(["src/a", "old/gone", "old/stays", "text", "other", "same", "lost.txt"], "1\n"),
    "own.yaml": "x: 1\n",
}


def test_inputs_that_a_stage_changes_are_recorded_as_dvc_repro_records_them(toy: Make) -> None:
    ours, theirs = toy(CHANGE, CHANGE_FILES, "ours"), toy(CHANGE, CHANGE_FILES, "theirs")
    with chdir(theirs.path), Repo() as repo, pytest.raises(ReproductionError, match="failed to reproduce 'lost'"):
        repo.reproduce(on_error="keep-going")
    code, text = ours.run()
    assert code == 1
    lines = [line for line in text.splitlines() if "changed while it ran" in line]
    said = [line.split("; ", 1)[1].split(" changed while")[0] for line in lines]
    assert sorted(said) == ["old", "own.yaml", "src", "text"]
    assert "lost failed: dependency 'lost.txt' does not exist" in text
    assert ours.read("dvc.lock") == theirs.read("dvc.lock")
    runs = Path(".dvc/cache/runs")
    assert files_below(ours.path / runs).keys() == files_below(theirs.path / runs).keys()
    assert set(ours.states().values()) == {"up to date", "blocked"}
