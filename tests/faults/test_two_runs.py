"""Runs started at the same moment: one works, the others say who, and nothing is done twice."""

import json
import os
import subprocess

import pytest

from tests import PYTHONPATH
from tests.dvcfleet.toy import CHAIN, CHAIN_FILES, Make
from tests.support import python, wait_until

RUN = "from flows.__main__ import start; start()"


@pytest.mark.slow
def test_of_runs_started_at_once_one_works_and_the_others_say_who(toy: Make) -> None:
    waits = "echo cut >> log; while [ ! -e go ]; do sleep 0.05; done;"
    chain = toy(CHAIN.replace("echo cut >> log;", waits), CHAIN_FILES)
    runs = [
        subprocess.Popen(
            [*python(), "-c", RUN, "run"],
            cwd=chain.path,
            env=os.environ | {"PYTHONPATH": PYTHONPATH},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for _ in range(2)
    ]
    wait_until(lambda: [run.poll() for run in runs].count(None) <= 1)
    pid = json.loads((chain.path / ".dvcfleet/lock").read_text())["pid"]
    (chain.path / "go").touch()
    said = {run.pid: run.communicate()[0] for run in runs}
    (winner,) = [run for run in runs if run.returncode == 0]
    for loser in runs:
        if loser is not winner:
            assert loser.returncode == 75
            assert f"another run is at work in this repository (process {pid}, since " in said[loser.pid]
            assert "Traceback" not in said[loser.pid]
    assert chain.ran() == ["cut", "turn", "end"]
    assert chain.settled()
