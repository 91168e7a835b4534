"""A whole cluster goes away in the middle of a run."""

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.dvcfleet.cluster import started
from tests.dvcfleet.toy import SLOW, Make, Toy, slow_files
from tests.faults.nodes import run
from tests.support import LIMIT_S, wait_until

NAMES = "abcdef"
# How long Dask waits for a lost scheduler to come back: by default half a minute.
SOON = {"DASK_DISTRIBUTED__COMM__TIMEOUTS__CONNECT": "3s"}


@pytest.fixture
def slow(toy: Make) -> Toy:
    return toy(SLOW, slow_files(NAMES))


@contextmanager
def lost(slow: Toy, prefect_api: str, *prefix: str) -> Iterator["subprocess.Popen[str]"]:
    """Give a run whose cluster was killed after its second stage."""
    with started("dask", prefect_api) as cluster:  # Ray ends the run by itself, which is then like one that was killed
        process = run(slow.path, "--runner", "dask", "--address", cluster.address, prefix=prefix, **SOON)
        wait_until(lambda: len(list(slow.path.glob("*.part"))) >= 2)
        cluster.kill()
        yield process


@pytest.mark.drill  # half a minute of waiting for Dask
def test_a_cluster_that_goes_away_costs_the_stages_it_had_in_work(slow: Toy, prefect_api: str) -> None:
    with lost(slow, prefect_api) as process:
        said, _ = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 1, said
    assert "no worker is left to run it" in said
    assert "unexpected" not in said
    before = slow.ran()
    assert slow.run()[0] == 0
    assert len(before) + len(slow.ran()) <= len(NAMES) + 2
    assert slow.settled()


@pytest.mark.drill
def test_a_run_whose_cluster_went_away_can_be_stopped(slow: Toy, prefect_api: str) -> None:
    with lost(slow, prefect_api, "env") as process:  # no fork, which is in another group
        said = ""
        for line in process.stdout:
            said += line
            if "its worker was lost" in line:
                break
        os.killpg(process.pid, signal.SIGINT)
        rest, _ = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 128 + signal.SIGINT, said + rest
    assert "stopped" in rest
    assert "unexpected" not in rest
