from collections.abc import Iterator, Mapping
from contextlib import chdir
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from dvc.repo import Repo
from dvc.utils.serialize import load_yaml

from dvcfleet.disk import sync_then_write
from dvcfleet.dvc_adapter.lockfiles import LockFiles
from tests.dvcfleet.toy import CHAIN, CHAIN_FILES, Make, Toy
from tests.tiny import dvc


@pytest.fixture
def done(toy: Make) -> Toy:
    chain = toy.ran(CHAIN, CHAIN_FILES)
    return chain


def make(folder: Path, order: tuple[str, ...] = ()) -> LockFiles:
    lock, sync = str(folder / "dvc.lock"), partial(sync_then_write, [folder])
    return LockFiles(folder / "journal", lambda: {lock: list(order)}, lambda path: None, sync)


@pytest.fixture
def stages(done: Toy) -> Iterator[dict[str, Any]]:
    """DVC's stages of the chain, with what dvc.lock says of them."""
    with chdir(done.path), Repo() as repo:
        yield {stage.addressing: stage for stage in repo.index.stages}


def test_entries_recorded_before_a_kill_are_recovered(done: Toy, stages: dict[str, Any]) -> None:
    lock = done.path / "dvc.lock"
    whole = lock.read_text()
    killed, order = make(done.path), ("cut", "turn", "end")
    killed.forget(str(lock), ["turn", "end"])
    killed.record(stages["turn"])
    killed.record(stages["end"])
    assert list(load_yaml(str(lock))["stages"]) == ["cut"]

    assert make(done.path, order).recover() == 2
    assert lock.read_text() == whole
    assert not (done.path / "journal").exists()
    assert make(done.path, order).recover() == 0


def test_files_are_synced_before_dvc_lock_names_them(done: Toy, stages: dict[str, Any]) -> None:
    lock, seen = done.path / "dvc.lock", list[list[str]]()

    def sync(texts: Mapping[Path, str]) -> None:
        seen.append(list(load_yaml(str(lock))["stages"]))
        sync_then_write([done.path], texts)

    locks = LockFiles(done.path / "journal", dict, lambda path: None, sync)
    locks.forget(str(lock), ["turn", "end"])
    locks.record(stages["turn"])
    locks.record(stages["end"])
    assert seen == []
    locks.flush()
    assert seen == [["cut"]]
    assert list(load_yaml(str(lock))["stages"]) == ["cut", "turn", "end"]


def test_a_line_cut_off_by_the_kill_is_left_out(done: Toy, stages: dict[str, Any]) -> None:
    lock, journal = done.path / "dvc.lock", done.path / "journal"
    killed = make(done.path)
    killed.forget(str(lock), ["turn", "end"])
    killed.record(stages["turn"])
    killed.record(stages["end"])
    journal.write_text(journal.read_text()[:-20])
    assert make(done.path).recover() == 1
    assert list(load_yaml(str(lock))["stages"]) == ["cut", "turn"]


def test_a_line_cut_off_by_a_full_disk_does_not_spoil_the_next(done: Toy, stages: dict[str, Any]) -> None:
    lock, journal = done.path / "dvc.lock", done.path / "journal"
    locks = make(done.path)
    locks.forget(str(lock), ["turn", "end"])
    locks.record(stages["turn"])
    journal.write_text(journal.read_text()[:-20])
    locks.record(stages["end"])
    assert make(done.path).recover() == 1
    assert list(load_yaml(str(lock))["stages"]) == ["cut", "end"]


def test_a_journal_older_than_dvc_lock_is_left_out(done: Toy, stages: dict[str, Any]) -> None:
    lock = done.path / "dvc.lock"
    killed = make(done.path)
    killed.record(stages["turn"])
    newer = lock.read_text().replace("times: 1", "times: 5")
    lock.write_text(newer)
    assert make(done.path).recover() == 0
    assert lock.read_text() == newer


def test_entries_stand_in_the_order_of_dvc_repro(done: Toy, stages: dict[str, Any]) -> None:
    lock = done.path / "dvc.lock"
    whole = lock.read_text()
    locks = make(done.path, ("cut", "turn", "end"))
    locks.forget(str(lock), ["cut", "turn", "end"])
    locks.record(stages["end"])
    locks.record(stages["cut"])
    locks.record(stages["turn"])
    locks.flush()
    assert lock.read_text() == whole


def test_nothing_is_written_where_nothing_changes(done: Toy, stages: dict[str, Any]) -> None:
    lock = done.path / "dvc.lock"
    before = lock.stat().st_mtime_ns
    locks = make(done.path)
    locks.record(stages["cut"])
    locks.flush()
    assert lock.stat().st_mtime_ns == before


@pytest.mark.parametrize("comment", ["", "# mine\n"])
def test_parameters_that_stand_twice_are_written_as_dvc_writes_them_and_dump_no_other_entry(
    toy: Make, comment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cmd = "foreach: [a, b, c]\n    do: {cmd: 'echo ${item} > ${item}', params: [one, two], outs: ['${item}']}"
    made = toy(f"stages:\n  part:\n    {cmd}\n", {"params.yaml": "one: &x [1, 2]\ntwo: {three: *x}\n"})
    dvc(made.path, "repro", "-q")
    lock = made.path / "dvc.lock"
    whole = lock.read_text()
    assert whole.count("&id") == 3
    lock.write_text(comment + whole)
    names = [f"part@{name}" for name in "abc"]
    if not comment:
        monkeypatch.setattr(LockFiles, "_dumped", None)
    with chdir(made.path), Repo() as repo:
        locks = make(made.path, tuple(names))
        for stage in repo.index.stages:
            locks.record(stage)
        locks.flush()
    assert lock.read_text() == whole
