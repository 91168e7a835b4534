"""Outputs that a user edited or lost: what DVC takes over stays, what it restores is restored, nothing is lost."""

import shutil
from contextlib import chdir
from pathlib import Path

import pytest
from dvc.repo import Repo

from tests.dvcfleet.toy import Make, Toy
from tests.tiny import dvc

STAGES = """
stages:
  one:
    cmd: echo one >> log; mkdir -p kept; cat source >> kept/lines; cat source > one.txt
    deps: [source]
    outs: [one.txt, {kept: {persist: true}}]
  two:
    cmd: echo two >> log; cat one.txt > two.txt; cat one.txt > score.json; cat one.txt > plot.csv
    deps: [one.txt]
    outs: [two.txt]
    metrics: [{score.json: {cache: false}}]
    plots: [{plot.csv: {cache: false}}]
  bare:
    cmd: echo bare >> log; cat one.txt one.txt one.txt > bare.txt
    deps: [one.txt]
    outs: [{bare.txt: {cache: false}}]
  three:
    cmd: echo three >> log; cat two.txt kept/lines > three.txt
    deps: [two.txt, kept]
    outs: [three.txt]
"""


@pytest.fixture
def done(toy: Make) -> Toy:
    made = toy.ran(STAGES, {"source": "1"})
    made.ran()
    return made


def both(ours: Toy, theirs: Toy) -> tuple[list[str], str]:
    """Run both, compare them, and return what ran and what was printed here."""
    dvc(theirs.path, "repro", "-q")
    code, text = ours.run(workers=1)
    assert code == 0, text
    assert ours.read("dvc.lock") == theirs.read("dvc.lock")
    for path in ("one.txt", "two.txt", "three.txt", "kept/lines", "score.json", "plot.csv", "bare.txt"):
        assert ours.read(path) == theirs.read(path)
    ran = ours.ran()
    assert ran == theirs.ran()
    return ran, text


def kept(made: Toy) -> dict[str, str]:
    folder = made.path / ".dvcfleet/kept-aside"
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {Path(*path.relative_to(folder).parts[1:]).as_posix(): path.read_text() for path in files}


def test_an_edited_output_of_a_frozen_stage_is_taken_over_and_what_reads_it_runs(done: Toy, toy: Make) -> None:
    done.write("dvc.yaml", STAGES.replace("  one:\n", "  one:\n    frozen: true\n"))
    done.write("one.txt", "work of a day")
    ran, _ = both(done, toy.copy_of(done))
    assert ran == ["two", "bare", "three"]
    assert done.read("one.txt") == "work of a day"
    assert kept(done) == {}


def test_a_command_runs_on_an_edited_output_that_persists(done: Toy, toy: Make) -> None:
    done.write("kept/lines", "work of a day")
    ran, _ = both(done, toy.copy_of(done))
    assert ran == ["one", "three"]
    assert done.read("kept/lines") == "work of a day1"


@pytest.mark.parametrize("lost", ["score.json", "plot.csv", "two.txt"])
def test_lost_metrics_and_plots_that_are_not_cached_are_restored_without_a_run(done: Toy, toy: Make, lost: str) -> None:
    (done.path / lost).unlink()
    assert done.states()["two"] == "restorable"
    assert both(done, toy.copy_of(done))[0] == []


@pytest.mark.parametrize("is_there", [True, False])
def test_an_edited_output_is_kept_whether_the_remote_has_what_was_written_or_not(
    done: Toy, tmp_path: Path, is_there: bool
) -> None:
    with chdir(done.path), Repo() as repo:
        with repo.config.edit() as config:
            config["remote"]["storage"] = {"url": str(tmp_path / "remote")}
            config["core"]["remote"] = "storage"
        repo.config.load()
        repo.push()
    shutil.rmtree(done.path / ".dvc/cache")
    if not is_there:
        shutil.rmtree(tmp_path / "remote")
    written = done.read("two.txt")
    done.write("two.txt", "work of a day")
    code, text = done.run(pull=True)
    assert code == 0, text
    assert (done.read("two.txt"), kept(done)) == (written, {"two.txt": "work of a day"})


def test_an_edited_output_is_restored_as_dvc_restores_it_and_the_edit_is_kept_and_named(done: Toy, toy: Make) -> None:
    for path in ("two.txt", "score.json"):
        done.write(path, "work of a day")
    ran, text = both(done, toy.copy_of(done))
    assert ran == []
    assert kept(done) == {"two.txt": "work of a day", "score.json": "work of a day"}
    assert "two.txt was changed since two wrote it, and is in no cache: kept as .dvcfleet/kept-aside/" in text
    # What the cache has need not be kept.
    done.write("two.txt", "2")
    assert done.run()[0] == 0
    done.write("source", "2")
    assert done.run()[0] == 0
    assert done.read("two.txt") == "2"
    done.write("two.txt", "1")
    assert done.run()[0] == 0
    assert set(kept(done)) == {"two.txt", "score.json"}


def test_an_edited_output_without_a_copy_runs_its_stage_again_and_is_kept(done: Toy, toy: Make) -> None:
    done.write("bare.txt", "work of a day")
    ran, _ = both(done, toy.copy_of(done))
    assert ran == ["bare"]
    assert kept(done) == {"bare.txt": "work of a day"}


def test_what_a_new_stage_finds_in_the_place_of_its_output_is_kept(done: Toy, toy: Make) -> None:
    done.write("dvc.yaml", f"{STAGES}  new: {{cmd: cat source > new.txt, deps: [source], outs: [new.txt]}}\n")
    done.write("new.txt", "work of a day")
    both(done, toy.copy_of(done))
    assert kept(done) == {"new.txt": "work of a day"}


def test_what_a_failed_stage_left_is_not_kept(toy: Make) -> None:
    failing = toy(
        "stages: {a: {cmd: cat source > a.txt; test -s source, deps: [source], outs: [a.txt]}}", {"source": ""}
    )
    assert failing.run()[0] == 1
    failing.write("a.txt", "half of it")
    failing.write("source", "1")
    assert failing.run()[0] == 0
    assert kept(failing) == {}


def test_a_folder_with_a_link_to_an_object_that_is_gone_is_kept_and_its_stage_runs(toy: Make) -> None:
    made = toy("stages: {a: {cmd: mkdir out && echo new > out/one, outs: [out]}}", {"out/own": "of the user's"})
    (made.path / "out/one").symlink_to(made.path / ".dvc/cache/files/md5/aa/gone")
    code, text = made.run()
    assert code == 0, text
    assert made.read("out/one") == "new\n"
    assert kept(made) == {"out/own": "of the user's"}
    assert "out was changed since a wrote it, and is in no cache" in text


def test_a_frozen_stage_is_up_to_date_whatever_it_reads(toy: Make) -> None:
    frozen = toy.ran(
        "stages: {a: {cmd: cat source > a.txt, deps: [source], outs: [a.txt], always_changed: true}}", {"source": ""}
    )
    frozen.write(
        "dvc.yaml", frozen.read("dvc.yaml").replace("always_changed: true", "always_changed: true, frozen: true")
    )
    frozen.write("source", "2")
    assert frozen.states() == {"a": "up to date"}
    frozen.write("dvc.yaml", frozen.read("dvc.yaml").replace("cat source", "cat  source"))
    theirs = toy.copy_of(frozen)
    dvc(theirs.path, "repro", "-q")
    assert frozen.run()[0] == 0
    assert frozen.read("dvc.lock") == theirs.read("dvc.lock")
