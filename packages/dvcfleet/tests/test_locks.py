"""While a stage's command runs, others may read the repository, and none may write what the stage reads or writes."""

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dvcfleet.errors import BUSY_EXIT_CODE
from dvcfleet.repository import opened, write_lock
from tests import warm
from tests.dvcfleet.test_busy import start
from tests.dvcfleet.toy import CHAIN, CHAIN_FILES, Make, Toy
from tests.support import LIMIT_S, forking, python, wait_for

STAGES = """
stages:
  quick: {cmd: echo 1 > quick, deps: [source], params: [x], outs: [quick]}
  slow: {cmd: "touch started; while test ! -e go; do sleep 0.05; done; cat quick > slow", deps: [quick], outs: [slow]}
  other: {cmd: echo 2 > other, deps: [source, slow], outs: [other]}
"""
APART = "stages: {apart: {cmd: echo 3 > made, deps: [../source], outs: [made]}}"


def dvc(folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run a `dvc` command in a process of its own."""
    return subprocess.run([*python(), "-m", "dvc", *arguments], cwd=folder, capture_output=True, text=True, check=False)


@pytest.fixture
def at_work(toy: Make) -> Iterator[Toy]:
    """A repository in which a run waits for its stage `slow`."""
    repository = toy(STAGES, {"source": "s", "params.yaml": "x: 1\n"})
    with start(repository.path) as run:
        wait_for(repository.path / "started", run)
        # As soon as nothing else is to be done, what has ended is in dvc.lock.
        wait_for(repository.path / "dvc.lock", run)
        yield repository
        (repository.path / "go").touch()
        said, _ = run.communicate(timeout=LIMIT_S)
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
    for command in (["repro"], ["repro", "-f", "-s", "slow"], ["repro", "-f", "-s", "other"], ["commit", "-f"]):
        refused = dvc(at_work.path, *command)
        assert refused.returncode != 0
        assert "is being blocked by" in refused.stderr
        assert (at_work.read("dvc.lock"), (at_work.path / "other").exists()) == (before, False)
    code, text = at_work.run()
    assert (code, "another run is at work" in text) == (BUSY_EXIT_CODE, True)
    # A command that has the lock when the stage ends, for longer than DVC itself would wait, is waited for.
    hold = "from dvc.repo import Repo; import time; r = Repo(); r.lock.lock(); open('held', 'w'); time.sleep(5)"
    with subprocess.Popen([*python(), "-c", hold], cwd=at_work.path) as holder:
        wait_for(at_work.path / "held", holder)
        (at_work.path / "go").touch()


def test_dvc_may_write_what_no_running_stage_uses(at_work: Toy) -> None:
    at_work.write("other.txt", "1")
    at_work.write("apart/dvc.yaml", APART)
    assert dvc(at_work.path, "add", "other.txt").returncode == 0
    assert dvc(at_work.path, "repro", "-f", "apart/dvc.yaml").returncode == 0
    assert "apart:" in at_work.read("apart/dvc.lock")


# Stages that run commands of DVC's which write: `dvc add`, and `dvc repro` and `dvc commit` of other stages.
WRITES = """
stages:
  adds: {cmd: "echo 1 > added.txt && python -m dvc add -q added.txt && cat source > adds", deps: [source],
    outs: [adds]}
  runs: {cmd: "python -m dvc repro -q ../inner/dvc.yaml && cat source > runs", wdir: outer,
    deps: [source], outs: [runs]}
  commits: {cmd: "echo 2 > inner.txt && python -m dvc commit -q -f inner.txt.dvc && echo 3 > commits", outs: [commits]}
"""
WRITES_FILES = {
    "source": "s",
    "outer/source": "s",
    "inner/dvc.yaml": "stages: {inner: {cmd: echo 1 > made, deps: [../source], outs: [made]}}",
    "inner.txt": "1",
}


def test_a_stage_may_run_dvc_commands_that_write(toy: Make) -> None:
    ours, theirs = toy(WRITES, WRITES_FILES, "ours"), toy(WRITES, WRITES_FILES, "theirs")
    for repository in (ours, theirs):
        assert dvc(repository.path, "add", "inner.txt").returncode == 0
    with forking():
        assert dvc(theirs.path, "repro").returncode == 0
        code, text = ours.run(workers=3)
    assert code == 0, text
    for name in ("dvc.lock", "inner/dvc.lock", "added.txt.dvc", "inner.txt.dvc"):
        assert ours.read(name) == theirs.read(name)
    assert ours.settled()


def test_a_stage_that_a_dvc_command_began_meanwhile_is_waited_for(toy: Make) -> None:
    slow = toy(STAGES, {"source": "s", "params.yaml": "x: 1\n", "quick": "1"})
    said: list[str] = []
    with opened(slow.path) as repo, write_lock(repo, say=said.append) as lock:
        stages = {stage.addressing: stage for stage in repo.index.stages}
        with lock.released():
            other = warm.start(["-m", "dvc", "repro", "-q", "-s", "slow"], slow.path)
            wait_for(slow.path / "started", other)
        can_start = {name: lock.lock_paths(stages[name]) for name in ("slow", "other", "quick", "slow")}
        (slow.path / "go").touch()
        while not lock.lock_paths(stages["slow"]):
            lock.give_a_turn()
        assert other.wait(LIMIT_S) == 0
    assert can_start == {"slow": False, "other": False, "quick": False}
    assert said
    assert f"(PID {other.pid})" in said[0]


def test_a_run_that_is_never_idle_gives_dvc_a_turn(toy: Make) -> None:
    chain = toy(CHAIN, CHAIN_FILES)
    with opened(chain.path) as repo, write_lock(repo) as lock:
        assert not lock.is_wanted()
        command = [*python(), "-m", "dvc", "status"]
        with subprocess.Popen(command, cwd=chain.path, stdout=subprocess.DEVNULL) as asking:
            while not lock.is_wanted() and asking.poll() is None:
                time.sleep(0.05)
            while asking.poll() is None:
                lock.give_a_turn()
        assert asking.returncode == 0
        assert not lock.is_wanted()
