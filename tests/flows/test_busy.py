"""A run that finds another at work waits, skips, or says so, as told."""

import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from flows.repository import SkippedError, held, opened
from tests.flows.toy import CHAIN, CHAIN_FILES, Make

ROOT = Path(__file__).parents[2]
SLOW = "stages: {a: {cmd: 'touch started; while test ! -e go; do sleep 0.05; done; echo 1 > x', outs: [x]}}"


def start(folder: Path, *options: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "flows", "run", *options],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    )


def test_a_run_that_waits_begins_when_the_other_has_ended(toy: Make) -> None:
    slow = toy(SLOW, {})
    with start(slow.path) as other:
        while other.poll() is None and not (slow.path / "started").exists():
            time.sleep(0.05)
        # The other can end only after this one has begun to wait.
        threading.Timer(2, (slow.path / "go").touch).start()
        code, text = slow.run(busy="wait")
        assert other.wait(timeout=60) == 0
    assert text.startswith(f"waiting: another run is at work in this repository (process {other.pid}, since ")
    assert text.count("waiting") == 1
    assert (code, text.splitlines()[-1]) == (0, "nothing to do: 1 stages are up to date")


def test_a_run_that_skips_ends_at_once_and_ran_nothing(toy: Make) -> None:
    chain = toy(CHAIN, CHAIN_FILES)
    with opened(chain.path) as repo, held(repo), pytest.raises(SkippedError, match=f"process {os.getpid()}"):
        chain.run(busy="skip")
    assert chain.ran() == []
    assert chain.run(busy="skip")[0] == 0
    assert chain.ran() == ["cut", "turn", "end"]


def test_a_skipped_run_is_no_failure_on_the_command_line(toy: Make) -> None:
    chain = toy(CHAIN, CHAIN_FILES)
    with opened(chain.path) as repo, held(repo), start(chain.path, "--busy", "skip") as other:
        printed, _ = other.communicate(timeout=60)
    assert other.returncode == 0
    assert re.fullmatch(
        rf"skipped: another run is at work in this repository \(process {os.getpid()}, since .+\)\n", printed
    )


def test_a_run_waits_for_a_dvc_command_too(toy: Make) -> None:
    chain = toy(CHAIN, CHAIN_FILES)
    with opened(chain.path) as repo:
        repo.lock.lock()
        threading.Timer(5, repo.lock.unlock).start()
        code, text = chain.run(busy="wait")
    assert text.startswith("waiting: a dvc command is at work in this repository")
    assert (code, chain.ran()) == (0, ["cut", "turn", "end"])
