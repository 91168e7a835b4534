"""A run that finds another at work waits, skips, or says so, as told."""

import errno
import fcntl
import json
import os
import re
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

import pytest
from dvc.repo import Repo

from dvcfleet import repository
from dvcfleet.errors import BusyError, SkippedError, UserError
from dvcfleet.repository import opened, write_lock
from tests import PYTHONPATH
from tests.dvcfleet.toy import CHAIN, CHAIN_FILES, Make, Printed
from tests.support import LIMIT_S, python, wait_for

ROOT = Path(__file__).parents[2]
SLOW = "stages: {a: {cmd: 'touch started; while test ! -e go; do sleep 0.05; done; echo 1 > x', outs: [x]}}"


def start(folder: Path, *options: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [*python(), "-m", "merganser.flows", "run", *options],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": PYTHONPATH},
        stdout=subprocess.PIPE,
        text=True,
    )


def test_a_run_that_waits_begins_when_the_other_has_ended(toy: Make) -> None:
    slow = toy(SLOW, {})
    with start(slow.path) as other:
        wait_for(slow.path / "started", other)
        # The other can end only after this one has begun to wait.
        pid = json.loads((slow.path / ".dvcfleet/lock").read_text())["pid"]
        code, text = slow.run(busy="wait", printed=Printed("waiting", (slow.path / "go").touch))
        assert other.wait(LIMIT_S) == 0
    assert text.startswith(f"waiting: another run is at work in this repository (process {pid}, since ")
    assert text.count("waiting") == 1
    assert (code, text.splitlines()[-1]) == (0, "nothing to do: 1 stage is up to date")


def test_a_run_that_skips_ends_at_once_and_ran_nothing(toy: Make) -> None:
    chain = toy(CHAIN, CHAIN_FILES)
    with opened(chain.path) as repo, write_lock(repo), pytest.raises(SkippedError, match=f"process {os.getpid()}"):
        chain.run(busy="skip")
    assert chain.ran() == []
    assert chain.run(busy="skip")[0] == 0
    assert chain.ran() == ["cut", "turn", "end"]


def test_a_skipped_run_is_no_failure_on_the_command_line(toy: Make) -> None:
    chain = toy(CHAIN, CHAIN_FILES)
    with opened(chain.path) as repo, write_lock(repo), start(chain.path, "--busy", "skip") as other:
        printed, _ = other.communicate(timeout=LIMIT_S)
    assert other.returncode == 0
    assert re.fullmatch(
        rf"skipped: another run is at work in this repository \(process {os.getpid()}, since .+\)\n", printed
    )


def test_a_run_waits_for_a_dvc_command_too(toy: Make) -> None:
    chain = toy(CHAIN, CHAIN_FILES)
    with opened(chain.path) as repo:
        repo.lock.lock()
        code, text = chain.run(busy="wait", printed=Printed("waiting", repo.lock.unlock))
    assert text.startswith("waiting: a dvc command is at work in this repository")
    assert (code, chain.ran()) == (0, ["cut", "turn", "end"])


@pytest.fixture
def locked(toy: Make) -> Iterator[tuple[Repo, TextIO]]:
    """Give a repository and its lock, which is held by nobody named."""
    chain = toy(CHAIN, CHAIN_FILES)
    lock = chain.path / ".dvcfleet" / "lock"
    lock.parent.mkdir(exist_ok=True)
    with opened(chain.path) as repo, lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield repo, file


@pytest.mark.parametrize(
    "before", ["", '{"pid": 4194305, "since": "long ago"}'], ids=["no name", "a killed run's name"]
)
def test_a_run_that_has_the_lock_and_not_yet_written_its_name_is_named(
    locked: tuple[Repo, TextIO], before: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repository, "NAMELESS_S", LIMIT_S)
    repo, file = locked
    lock = Path(file.name)
    lock.write_text(before)
    threading.Timer(0.5, lock.write_text, [f'{{"pid": {os.getpid()}, "since": "now"}}']).start()
    with pytest.raises(BusyError, match=rf"\(process {os.getpid()}, since now\)"), write_lock(repo):
        pass


def test_a_lock_let_go_just_after_its_name_was_removed_is_taken(
    locked: tuple[Repo, TextIO], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repository, "NAMELESS_S", LIMIT_S)
    repo, file = locked
    threading.Timer(0.5, fcntl.flock, [file, fcntl.LOCK_UN]).start()
    with write_lock(repo):
        assert json.loads(Path(file.name).read_text())["pid"] == os.getpid()


def test_a_lock_whose_holder_is_never_named_is_not_waited_for(
    locked: tuple[Repo, TextIO], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repository, "NAMELESS_S", 0.1)
    with pytest.raises(BusyError, match="process unknown"), write_lock(locked[0]):
        pass


def test_a_file_system_that_cannot_lock_files_is_named_with_what_to_do(
    locked: tuple[Repo, TextIO], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(file: TextIO, how: int) -> None:  # as Lustre does that is mounted without `-o flock`
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(fcntl, "flock", refuse)
    said = r"lock: the file system cannot lock files: Function not implemented; mount it with locks \(Lustre"
    with pytest.raises(UserError, match=said), write_lock(locked[0]):
        pass
