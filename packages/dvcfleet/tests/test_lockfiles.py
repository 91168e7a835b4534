import shutil
from collections.abc import Iterator, Mapping
from contextlib import chdir, nullcontext
from copy import deepcopy
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from dvc.repo import Repo
from dvc.utils.serialize import load_yaml, modify_yaml
from hypothesis import given
from hypothesis import strategies as st
from ruamel.yaml.representer import RepresenterError

from dvcfleet.disk import sync_then_write
from dvcfleet.dvc_adapter.lockfiles import LockFiles
from tests.dvcfleet.toy import CHAIN, CHAIN_FILES, Make, Toy
from tests.support import steady
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
    assert lock.read_text() == comment + whole


# Files that `dvc repro` finds: in its own layout, with comments, other keys, and as people or other tools write them.
FOUND = [
    None,
    "schema: '2.0'\n",
    "schema: '2.0'\nstages: {}\n",
    "# top\nschema: '2.0'\nstages:\n  b:\n    cmd: old # of b\n  # before c\n  c:\n    cmd: old\n# end\n",
    "schema: '2.0'\nstages:\n  b:\n    cmd: old\n\n  gone:\n    cmd: old\n\n",
    "schema: '2.0'\nstages:\n  gone:\n    cmd: old\n    outs:\n      - path: x\n        md5: 'a'\n  c: {cmd: old}\n",
    "schema: '2.0'\ndatasets:\n- name: one\n  type: dvc\nstages:\n  gone:\n    cmd: old\n  a:\n    cmd: old\n",
    "stages:\n  d:\n    cmd: old\n  a:\n    cmd: old\nschema: '2.0'\n",
    "schema: '2.0'\r\nstages:\r\n  c:\r\n    cmd: old\r\n",
    "schema: '2.0'\nstages:\n  gone:\n    cmd: >-\n      old\n      words\n  c:\n    cmd: \"old\"\n",
    "schema: '2.0'\nstages:\n  gone:\n    cmd: old\n    params:\n      p:\n        n: 1e-5\n        f: 0.50\n",
    "schema: '2.0'\nstages:\n  gone:\n    cmd: old\n    params:\n      p:\n        x: &id003 [1]\n        y: *id003\n",
]
SHARED = {"a": [1, 2]}
ENTRIES = [
    {"cmd": "new"},
    {"cmd": ["new 1", "new: 2"], "outs": [{"path": "x y", "hash": "md5", "md5": "ab" * 16, "size": 1, "isexec": True}]},
    {"cmd": "word " * 30, "params": {"params.yaml": {"lr": 1e-5, "half": 0.5, "none": None, "yes": "yes"}}},
    {"cmd": "new", "params": {"params.yaml": {"one": SHARED, "two": SHARED}}},
]
ORDER = ("a", "b", "c", "d")


@steady(30)
@given(
    found=st.sampled_from(FOUND),
    entries=st.dictionaries(st.sampled_from(ORDER), st.sampled_from(ENTRIES), min_size=1),
    ended=st.permutations(ORDER),
    groups=st.lists(st.booleans(), min_size=4, max_size=4),
    killed=st.integers(-1, 3),
)
def test_the_file_is_what_dvc_repro_makes_of_it_whichever_stage_ended_first_and_whatever_kill_came_between(
    tmp_path: Path, found: str | None, entries: dict[str, Any], ended: list[str], groups: list[bool], killed: int
) -> None:
    for name in ("ours", "theirs"):
        shutil.rmtree(tmp_path / name, ignore_errors=True)
        (tmp_path / name).mkdir()
        if found is not None:
            (tmp_path / name / "dvc.lock").write_bytes(found.encode())
    theirs = tmp_path / "theirs/dvc.lock"
    for name in [name for name in ORDER if name in entries]:  # as dvc.dvcfile.Lockfile.dump_stages does it
        with modify_yaml(str(theirs)) as data:
            if not data:
                data.update({"schema": "2.0"})
            data["stages"] = data.get("stages", {})
            data["stages"].update({name: deepcopy(entries[name])})
    locks = make(tmp_path / "ours", ORDER)
    for number, name in enumerate(name for name in ended if name in entries):
        locks.record(SimpleNamespace(path=str(tmp_path / "ours/dvc.yaml"), name=name), entries[name])  # type: ignore[arg-type]
        if groups[number]:
            locks.flush()
        if number == killed:
            locks = make(tmp_path / "ours", ORDER)
            locks.recover()
    locks.flush()
    assert (tmp_path / "ours/dvc.lock").read_bytes() == theirs.read_bytes()


def test_entries_of_a_later_run_follow_those_of_the_earlier(tmp_path: Path) -> None:
    def record(name: str) -> None:
        locks.record(SimpleNamespace(path=str(tmp_path / "dvc.yaml"), name=name), {"cmd": "x"})  # type: ignore[arg-type]
        locks.flush()

    locks = make(tmp_path, ORDER)
    record("c")
    record("b")
    locks.settle()
    record("a")
    assert list(load_yaml(str(tmp_path / "dvc.lock"))["stages"]) == ["b", "c", "a"]
    for damage in ("", "{", "[1]", '{"x": 1}'):
        (tmp_path / "lock-order.json").write_text(damage)
        locks = make(tmp_path, ORDER)
        record("d")
        assert list(load_yaml(str(tmp_path / "dvc.lock"))["stages"]) == ["b", "c", "a", "d"]


def test_an_entry_that_cannot_be_written_is_refused_and_leaves_the_others(tmp_path: Path) -> None:
    locks = make(tmp_path, ORDER)
    for name, value in (("a", 1), ("b", object()), ("c", 3)):
        stage: Any = SimpleNamespace(path=str(tmp_path / "dvc.yaml"), name=name)
        with pytest.raises(RepresenterError) if name == "b" else nullcontext():
            locks.record(stage, {"cmd": "x", "params": {"params.yaml": {"p": value}}})
    locks.flush()
    assert list(load_yaml(str(tmp_path / "dvc.lock"))["stages"]) == ["a", "c"]
