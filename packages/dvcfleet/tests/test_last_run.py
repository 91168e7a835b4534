"""What is said of a repository's last run."""

from pathlib import Path

from dvcfleet.record.last_run import last_run
from dvcfleet.repository import opened, write_lock
from tests.dvcfleet.toy import CHAIN, CHAIN_FILES, Make

FAILING = "stages: {good: {cmd: echo 1 > x, outs: [x]}, bad: {cmd: exit 3, outs: [y]}}"


def test_where_nothing_ran_there_is_no_last_run(tmp_path: Path) -> None:
    assert last_run(tmp_path) is None


def test_a_run_that_succeeded_is_done_and_its_stages_are_counted(toy: Make) -> None:
    chain = toy.ran(CHAIN, CHAIN_FILES)
    found = last_run(chain.path / ".dvcfleet")
    assert found
    assert (found.state, found.counts, found.failed) == ("done", {"done": 3}, ())
    assert found.flow_run
    assert found.began <= found.ended


def test_a_run_is_failed_until_it_is_run_again_with_success(toy: Make) -> None:
    broken = toy(FAILING, {})
    assert broken.run()[0] == 1
    found = last_run(broken.path / ".dvcfleet")
    assert found
    assert (found.state, found.failed) == ("failed", ("bad",))
    broken.write("dvc.yaml", FAILING.replace("exit 3", "echo 2 > y"))
    with opened(broken.path) as repo, write_lock(repo):
        again = last_run(broken.path / ".dvcfleet")
        assert again
        assert again.state == "running"
    assert broken.run()[0] == 0
    mended = last_run(broken.path / ".dvcfleet")
    assert mended
    assert (mended.name, mended.state, mended.counts, mended.failed) == (found.name, "done", {"done": 2}, ())
