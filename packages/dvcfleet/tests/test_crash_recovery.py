"""What a killed run left is out of the way when the next one begins."""

import json
import os
import time
from collections.abc import Callable
from contextlib import chdir
from pathlib import Path

import pytest
from dvc.repo import Repo

from dvcfleet.dvc_adapter.run_cache import temporary_mark
from dvcfleet.repository import opened, write_lock
from tests.dvcfleet.toy import CHAIN, CHAIN_FILES, Make, Toy
from tests.faults.whole import assert_cache_is_whole, content

TEMPORARY = ".Zx0-_aBcDeFgHiJkLmNoPq.tmp"
FAMILY = """
stages:
  each: {cmd: mkdir -p each && echo 1 > each/a, deps: [source], outs: [each/a]}
  kept: {cmd: mkdir -p kept && echo 1 > kept/a, deps: [source], outs: [kept: {persist: true}]}
  all: {cmd: ls -A each kept > all.txt, deps: [each, kept], outs: [all.txt]}
"""


@pytest.fixture
def chain(toy: Make) -> Toy:
    made = toy.ran(CHAIN, CHAIN_FILES)
    return made


def at_work(toy: Toy, boot: str) -> None:
    """Leave the word that a run leaves when it is killed, as if it had begun an hour ago."""
    note = toy.path / ".dvcfleet/at-work"
    note.parent.mkdir(exist_ok=True)
    note.write_text(boot)
    os.utime(note, (time.time() - 3600,) * 2)


def boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def test_a_killed_runs_temporary_files_are_not_taken_for_input(toy: Make) -> None:
    family = toy(FAMILY, {"source": ""})
    family.write(f"each/{TEMPORARY}", "half")
    family.write(f"kept/{TEMPORARY}", "half")
    family.write("each/.my-own.tmp", "")
    at_work(family, boot_id())
    assert family.run()[0] == 0
    assert not list(family.path.rglob(TEMPORARY))
    assert ".my-own.tmp" in family.read("all.txt")
    assert family.settled()


def test_a_run_that_ended_leaves_no_word_and_files_alone(chain: Toy) -> None:
    assert not (chain.path / ".dvcfleet/at-work").exists()
    chain.write(TEMPORARY, "mine")
    assert chain.run()[0] == 0
    assert chain.read(TEMPORARY) == "mine"


def test_objects_that_lost_their_content_with_the_machine_are_made_again(chain: Toy) -> None:
    chain.ran()
    before = content(chain.path)
    objects = [path for path in (chain.path / ".dvc/cache/files/md5").glob("*/*") if path.is_file()]
    for path in objects:
        path.chmod(0o644)
        os.truncate(path, 0)
        path.chmod(0o444)
    chain.write("cut.txt", "")
    at_work(chain, "another life of the machine")
    code, text = chain.run()
    assert code == 0, text
    assert chain.ran() == ["cut", "turn"]
    assert content(chain.path) == before
    assert_cache_is_whole(chain.path)
    assert chain.settled()


@pytest.mark.parametrize("synced", [None, '{"boot": "x", "moment": 1e12}'], ids=["noted", "in the future"])
def test_bytes_that_changed_behind_the_size_and_the_time_of_a_file_are_found_after_a_crash(
    chain: Toy, synced: str | None
) -> None:
    if synced:
        chain.write(".dvcfleet/synced", synced)
    chain.ran()
    before = content(chain.path)
    for path in (object_of(chain, "cut.txt"), chain.path / "cut.txt"):
        overwrite(path, b"xyz")
    at_work(chain, boot_id())
    assert chain.run()[0] == 0
    assert chain.ran() == ["cut"]
    assert content(chain.path) == before
    assert_cache_is_whole(chain.path)


def test_what_dvc_wrote_before_the_machine_went_down_is_checked_too(chain: Toy) -> None:
    (chain.path / ".dvcfleet/synced").write_text(json.dumps({"boot": "another", "moment": time.time() - 1}))
    overwrite(object_of(chain, "cut.txt"), b"xyz")
    (chain.path / "cut.txt").unlink()
    assert chain.run()[0] == 0
    assert chain.read("cut.txt") == "abc"


def object_of(toy: Toy, name: str) -> Path:
    """The object of a file in DVC's cache."""
    with chdir(toy.path), Repo() as repo:
        out = next(out for out in repo.index.outs if str(out) == name)
        return Path(out.cache.oid_to_path(out.hash_info.value))


def overwrite(path: Path, data: bytes) -> None:
    """Write into a file as it lies, and leave its times as they were."""
    info = path.stat()
    path.chmod(0o644)
    with path.open("r+b") as file:
        file.truncate(len(data))
        file.write(data)
    os.utime(path, ns=(info.st_atime_ns, info.st_mtime_ns))
    path.chmod(info.st_mode)


def empty_file(toy: Toy) -> list[str]:
    """Tear a file's object, as if by a crash of which nobody knows; the stages that have to run for it."""
    overwrite(object_of(toy, "cut.txt"), b"")
    return ["cut"]


def half_listing(toy: Toy) -> list[str]:
    listing = object_of(toy, "turned")
    overwrite(listing, listing.read_bytes()[:-20])
    return ["turn"]


def listed_file(toy: Toy) -> list[str]:
    entry = json.loads(object_of(toy, "turned").read_text())[0]
    overwrite(toy.path / ".dvc/cache/files/md5" / entry["md5"][:2] / entry["md5"][2:], b"")
    return ["turn"]


@pytest.mark.parametrize("tear", [empty_file, half_listing, listed_file])
@pytest.mark.parametrize("is_there", [False, True], ids=["lost", "there"])
def test_what_is_torn_is_neither_restored_nor_taken_for_stored(
    chain: Toy, tear: Callable[[Toy], list[str]], is_there: bool
) -> None:
    chain.ran()
    before = content(chain.path)
    runs = tear(chain)
    if not is_there:
        (chain.path / "cut.txt").unlink()
        (chain.path / "turned/text").unlink()
    code, text = chain.run()
    assert code == 0, text
    assert chain.ran() == runs
    assert content(chain.path) == before
    assert_cache_is_whole(chain.path)
    assert chain.settled()


@pytest.mark.parametrize("links", ["hardlink", "symlink"])
def test_a_torn_object_that_is_linked_to_is_replaced(toy: Make, links: str) -> None:
    chain = toy(CHAIN, CHAIN_FILES)
    chain.write(".dvc/config", f"[cache]\n    type = {links}\n")
    assert chain.run()[0] == 0
    empty_file(chain)
    listed_file(chain)
    assert chain.run()[0] == 0
    assert (chain.read("cut.txt"), chain.read("end.txt")) == ("abc", "cba")
    assert_cache_is_whole(chain.path)
    assert chain.settled()


def test_a_torn_object_of_added_data_is_made_again_from_the_workspace(toy: Make) -> None:
    made = toy("stages: {a: {cmd: cp given x, deps: [given], outs: [x]}}", {"given": "data"})
    with chdir(made.path), Repo() as repo:
        repo.add("given")
    torn = object_of(made, "given")
    overwrite(torn, b"")
    code, text = made.run()
    assert code == 0, text
    assert torn.read_text() == made.read("x") == "data"
    assert made.settled()


def test_an_entry_of_the_run_cache_that_lost_its_end_is_not_restored_but_written_again(toy: Make) -> None:
    script = "stages: {a: {cmd: 'echo a >> log; echo 1 > x; chmod 755 x', deps: [source], outs: [x]}}"
    made = toy.ran(script, {"source": "s"})
    entry = next(path for path in (made.path / ".dvc/cache/runs").glob("*/*/*"))
    whole = entry.read_bytes()
    overwrite(entry, whole[: whole.index(b"    isexec") if b"    isexec" in whole else whole.index(b"  isexec")])
    (made.path / "dvc.lock").unlink()
    made.ran()
    code, text = made.run()
    assert code == 0, text
    assert made.ran() == ["a"]
    assert entry.read_bytes() == whole


@pytest.fixture
def shared(toy: Make, tmp_path: Path) -> tuple[Toy, Toy, Path]:
    """Two repositories that ran the same stages with one cache between them; the cache."""
    cache = tmp_path / "shared"
    made = [toy(CHAIN, CHAIN_FILES, name) for name in ("ours", "theirs")]
    for each in made:
        each.write(".dvc/config", f"[cache]\n    dir = {cache}\n")
        assert each.run()[0] == 0
    return made[0], made[1], cache


def mark_of(toy: Toy) -> str:
    with opened(toy.path) as repo:
        return temporary_mark(repo)


def test_in_a_shared_cache_only_ones_own_temporary_files_are_removed(shared: tuple[Toy, Toy, Path]) -> None:
    ours, theirs, cache = shared
    entry = next(path for path in (cache / "runs").glob("*/*/*"))
    others = [entry.parent / TEMPORARY, entry.parent / ".4711.tmp", cache / f"runs/{mark_of(theirs)}4711.tmp"]
    own = cache / f"runs/{mark_of(ours)}4711.tmp"
    empty = cache / "runs/00/00"
    empty.mkdir(parents=True)
    for path in (*others, own):
        path.write_text("half")
    at_work(ours, "another life of the machine")
    assert ours.run()[0] == 0
    assert [path.exists() for path in (*others, own, empty)] == [True, True, True, False, True]


def test_in_a_shared_cache_only_ones_own_torn_objects_are_removed(shared: tuple[Toy, Toy, Path]) -> None:
    ours, theirs, cache = shared
    theirs.write("source", "uvwxyz")
    assert theirs.run()[0] == 0
    ours.ran()
    tear = {path: path.read_bytes() for path in (cache / "files/md5").glob("*/*") if not path.name.endswith(".dir")}
    for path in tear:
        path.chmod(0o644)
        os.truncate(path, 0)
    at_work(ours, "another life of the machine")
    (ours.path / "cut.txt").unlink()
    assert ours.run()[0] == 0
    assert "cut" in ours.ran()
    mine = {path for path, content in tear.items() if content in (b"abc", b"cba")}
    assert len(mine) == 2
    assert {path for path in tear if path.exists() and path.read_bytes() != b""} == mine


def test_an_object_of_another_users_that_holds_other_bytes_is_not_taken_for_stored(
    shared: tuple[Toy, Toy, Path],
) -> None:
    ours, _, cache = shared
    torn = cache / "files/md5/90/0150983cd24fb0d6963f7d28e17f72"  # of abc
    overwrite(torn, b"xyz")
    assert ours.run(force=True)[0] == 0
    assert torn.read_bytes() == b"abc"


def test_a_list_of_locks_that_a_kill_left_half_written_does_not_stand_in_the_way(chain: Toy) -> None:
    (chain.path / ".dvc/tmp/rwlock").write_text('{"write": {"')
    with opened(chain.path) as repo, write_lock(repo):
        pass
    assert chain.run()[0] == 0


def test_a_name_that_a_kill_left_unwritten_is_given_anew(chain: Toy) -> None:
    (chain.path / ".dvcfleet/run.json").write_text("")
    chain.write("source", "uvwxyz")
    code, text = chain.run()
    assert code == 0, text
