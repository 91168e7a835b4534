"""While a stage's command runs, others may read the repository, and none may write in it."""

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dvcfleet.errors import BUSY_EXIT_CODE
from dvcfleet.repository import opened, write_lock
from tests.dvcfleet.test_busy import start
from tests.dvcfleet.toy import CHAIN, CHAIN_FILES, Make, Toy

STAGES = """
stages:
  quick: {cmd: echo 1 > quick, deps: [source], params: [x], outs: [quick]}
  slow: {cmd: "touch started; while test ! -e go; do sleep 0.05; done; cat quick > slow", deps: [quick], outs: [slow]}
  other: {cmd: echo 2 > other, deps: [source, slow], outs: [other]}
"""


def dvc(folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run a `dvc` command in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "dvc", *arguments], cwd=folder, capture_output=True, text=True, check=False
    )


def wait_for(path: Path) -> None:
    """Wait until a file is there."""
    end = time.monotonic() + 120
    while not path.exists():
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.fixture
def at_work(toy: Make) -> Iterator[Toy]:
    """A repository in which a run waits for its stage `slow`."""
    repository = toy(STAGES, {"source": "s", "params.yaml": "x: 1\n"})
    with start(repository.path) as run:
        wait_for(repository.path / "started")
        # As soon as nothing else is to be done, what has ended is in dvc.lock.
        wait_for(repository.path / "dvc.lock")
        yield repository
        (repository.path / "go").touch()
        said, _ = run.communicate(timeout=120)
        assert run.returncode == 0, said
    assert repository.settled()


def test_dvc_answers_while_a_stage_runs(at_work: Toy) -> None:
    for command in (["status"], ["params", "diff"], ["data", "status"], ["dag"]):
        answer = dvc(at_work.path, *command)
        assert answer.returncode == 0, answer.stderr
    # What has ended is in dvc.lock already, and up to date.
    status = dvc(at_work.path, "status").stdout
    assert "slow:" in status
    assert "quick:" not in status


def test_no_other_writer_mixes_in_while_a_stage_runs(at_work: Toy) -> None:
    before = at_work.read("dvc.lock")
    for command in (["repro"], ["repro", "-s", "quick"], ["repro", "-f", "-s", "other"], ["commit", "-f"]):
        refused = dvc(at_work.path, *command)
        assert refused.returncode != 0
        assert "is being blocked by" in refused.stderr
        assert (at_work.read("dvc.lock"), (at_work.path / "other").exists()) == (before, False)
    code, text = at_work.run()
    assert (code, "another run is at work" in text) == (BUSY_EXIT_CODE, True)
    # A command that has the lock when the stage ends, for longer than DVC itself would wait, is waited for.
    hold = "from dvc.repo import Repo; import time; r = Repo(); r.lock.lock(); open('held', 'w'); time.sleep(5)"
    with subprocess.Popen([sys.executable, "-c", hold], cwd=at_work.path):
        wait_for(at_work.path / "held")
        (at_work.path / "go").touch()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells that a file was opened")
def test_a_run_that_is_never_idle_gives_dvc_a_turn(toy: Make) -> None:
    chain = toy(CHAIN, CHAIN_FILES)
    with opened(chain.path) as repo, write_lock(repo) as lock:
        assert not lock.is_wanted()
        command = [sys.executable, "-m", "dvc", "status"]
        with subprocess.Popen(command, cwd=chain.path, stdout=subprocess.DEVNULL) as asking:
            while not lock.is_wanted() and asking.poll() is None:
                time.sleep(0.05)
            while asking.poll() is None:
                lock.give_a_turn()
        assert asking.returncode == 0
        assert not lock.is_wanted()
