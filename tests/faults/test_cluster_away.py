"""A whole cluster goes away in the middle of a run."""

import pytest

from tests.dvcfleet.cluster import started
from tests.dvcfleet.toy import SLOW, Make, slow_files
from tests.faults.nodes import run
from tests.waiting import LIMIT_S, wait_until

NAMES = "abcdef"


@pytest.mark.drill
def test_a_cluster_that_goes_away_costs_the_stages_it_had_in_work(toy: Make, prefect_api: str) -> None:
    slow = toy(SLOW, slow_files(NAMES))
    with started("dask", prefect_api) as cluster:  # Ray ends the run by itself, which is then like one that was killed
        process = run(slow.path, "--runner", "dask", "--address", cluster.address)
        wait_until(lambda: len(list(slow.path.glob("*.part"))) >= 2)
        cluster.kill()
        said, _ = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 1, said
    assert "no worker is left to run it" in said
    assert "Traceback" not in said
    before = slow.ran()
    assert slow.run()[0] == 0
    assert len(before) + len(slow.ran()) <= len(NAMES) + 2
    assert slow.settled()
