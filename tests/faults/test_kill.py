"""Runs killed with SIGKILL, the whole process group at once, at random moments: nothing is lost, nothing is half."""

import os
import random
import shutil
import signal
import time
from pathlib import Path

import pytest

from dvcfleet.dvc_adapter.run_cache import run_cache_folder, temporary_mark
from dvcfleet.repository import opened
from tests import PYTHONPATH, warm
from tests.dvcfleet.test_run import commands_in
from tests.dvcfleet.toy import Make, Toy
from tests.faults.whole import assert_cache_is_whole, content
from tests.support import wait_until
from tests.warm import Started

# Stages that take a while and write their output in steps, into a folder and into files, so that a kill finds halves.
SLOWLY = """
stages:
  part:
    foreach: ${parts}
    do:
      cmd: mkdir part/${key} && for i in 1 2 3 4 5; do echo ${key} $i >> part/${key}/all; sleep 0.03; done
      deps: [source, part/here]
      outs: ["part/${key}"]
  sum:
    foreach: ${parts}
    do:
      cmd: for i in 1 2 3 4 5; do md5sum part/${key}/all >> ${key}.sum; sleep 0.03; done
      deps: ["part/${key}"]
      outs: ["${key}.sum"]
  kept:
    foreach: ${parts}
    do:
      cmd: >-
        mkdir -p kept/${key}; for i in 1 2 3; do [ -e kept/${key}/$i ] || cp ${key}.sum kept/${key}/.new;
        [ -e kept/${key}/$i ] || mv kept/${key}/.new kept/${key}/$i; sleep 0.03; done
      deps: ["${key}.sum"]
      outs: ["kept/${key}": {persist: true}]
  all:
    cmd: cat kept/*/* *.sum > all.txt
    deps: [kept, a.sum, b.sum]
    outs: [all.txt]
"""
NAMES = "abcdefgh"
FILES = {
    "source": "s",
    "part/here": "",
    "params.yaml": "parts: {" + ", ".join(f"{name}: {name}.sum" for name in NAMES) + "}\n",
}
RUN = "import sys; from pathlib import Path; from dvcfleet.run import run; sys.exit(run(repo=Path(), workers=4))"


def start(folder: Path) -> Started:
    """Start a run in a process group of its own, as from a shell."""
    environment = os.environ | {"PYTHONPATH": PYTHONPATH, "OMP_NUM_THREADS": "1"}
    with open(os.devnull, "w") as nothing:
        return warm.start(["-c", RUN], folder, environment, nothing.fileno())


def kill_all(process: Started) -> bool:
    """Kill the run's whole process group; whether it was still at work."""
    at_work = process.poll() is None
    if at_work:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    return at_work


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, prefect_api: str) -> Toy:
    """The repository after a run that nobody disturbed."""
    toy = Toy(tmp_path_factory.mktemp("undisturbed") / "toy", SLOWLY, FILES)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PREFECT_API_URL", prefect_api)
        code, text = toy.run(workers=4)
    assert code == 0, text
    return toy


@pytest.mark.drill  # a sample of the drill `kills` is tried every day
def test_a_run_killed_five_times_ends_well_with_the_same_bytes(undisturbed: Toy, toy: Make) -> None:
    chance = random.Random(1)
    killed = toy(SLOWLY, FILES)
    hits = 0
    for _ in range(5):
        process = start(killed.path)
        wait_for_work(killed.path, process)
        time.sleep(chance.uniform(0, 1.5))
        hits += kill_all(process)
    code, text = killed.run(workers=4)
    assert code == 0, text
    assert hits >= 2
    assert content(killed.path) == content(undisturbed.path)
    assert_cache_is_whole(killed.path)
    assert killed.settled()


def wait_for_work(folder: Path, process: Started) -> None:
    """Wait until the run has begun to start stages, or to write; a kill before that is of little interest."""
    before = {path.name for path in folder.glob("part/*")} | {path.name for path in folder.glob("*")}

    def began() -> bool:
        now = {path.name for path in folder.glob("part/*")} | {path.name for path in folder.glob("*")}
        return now != before or (folder / ".dvcfleet/journal").exists()

    wait_until(lambda: process.poll() is not None or began())


@pytest.mark.slow
def test_what_ended_before_a_kill_is_not_run_again(toy: Make) -> None:
    noted = SLOWLY.replace("cmd: mkdir part", "cmd: echo ${key} >> log; mkdir part")
    # Its last stage waits until it has been killed.
    counted = toy(noted.replace("cmd: cat kept", "cmd: while [ ! -e go ]; do sleep 0.05; done; cat kept"), FILES)
    process = start(counted.path)
    journal = counted.path / ".dvcfleet/journal"
    wait_until(lambda: process.poll() is not None or (journal.exists() and journal.read_text().count("\n") >= 3))
    assert kill_all(process)
    ended = set(NAMES) & {line.split('"part@')[1][0] for line in journal.read_text().splitlines() if '"part@' in line}
    assert ended
    (counted.path / "go").touch()
    counted.ran()
    assert counted.run()[0] == 0
    assert not ended & set(counted.ran())
    assert counted.settled()


@pytest.mark.slow
def test_a_kill_of_the_run_alone_leaves_no_command_behind(toy: Make) -> None:
    lasting = toy("stages: {a: {cmd: 'touch started; sleep 600; echo 1 > x', outs: [x]}}", {})
    process = start(lasting.path)
    wait_until((lasting.path / "started").exists)
    process.kill()
    process.wait()
    wait_until(lambda: not commands_in(lasting.path))


@pytest.mark.slow
def test_a_kill_while_dvc_lock_is_written_leaves_the_old_one_whole(undisturbed: Toy, toy: Make) -> None:
    # As it stands when the kill hits just before the new file takes the old one's place.
    copy = toy.copy_of(undisturbed)
    before = copy.read("dvc.lock")
    shutil.copy(copy.path / "dvc.lock", copy.path / "dvc.lock.new")
    with (copy.path / "dvc.lock.new").open("r+") as file:
        file.truncate(len(before) // 2)
    assert copy.run()[0] == 0
    assert copy.read("dvc.lock") == before


def test_a_kill_while_the_run_cache_is_written_leaves_no_half_entry(undisturbed: Toy, toy: Make) -> None:
    copy = toy.copy_of(undisturbed)
    entries = [path for path in (copy.path / ".dvc/cache/runs").glob("*/*/*") if "all.txt" in path.read_text()]
    (entry,) = entries
    with opened(copy.path) as repo:
        half = Path(run_cache_folder(repo), f"{temporary_mark(repo)}4194305.tmp")
    of_another = entry.with_name(".half.tmp")
    (copy.path / ".dvcfleet/at-work").write_text("")  # as a killed run leaves it
    for path in (half, of_another):
        path.write_text(entry.read_text().split("outs:")[0])
    entry.unlink()
    for path in ("dvc.lock", "all.txt"):
        (copy.path / path).unlink()
    others = [path for path in (copy.path / ".dvc/cache/runs").glob("*/*/*") if "kept" not in path.read_text()]
    others[0].unlink()

    assert "restorable" in copy.states().values()
    assert copy.run()[0] == 0
    assert not half.exists()
    assert of_another.exists()  # somebody may still be writing it
    assert content(copy.path) == content(undisturbed.path)
    assert copy.settled()


@pytest.mark.drill
def test_a_killed_run_with_its_own_server_goes_on_with_the_next(toy: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PREFECT_API_URL")
    killed = toy(SLOWLY, FILES)
    for wait in (2.0, 6.0):
        process = start(killed.path)
        time.sleep(wait)
        kill_all(process)
    code, text = killed.run(workers=4)
    assert code == 0, text
    assert "Traceback" not in text
    assert killed.settled()
