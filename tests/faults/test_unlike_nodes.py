"""Nodes of which one has a GPU, and the other more memory and threads; the GPU is made up."""

import shutil
import socket
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dvcfleet.messages import Command, Ending, Job
from dvcfleet.planning.resources import Resources
from dvcfleet.record.ledger import executions
from dvcfleet.worker.fork_client import ForkServers
from tests.dvcfleet.toy import Printed, Toy
from tests.faults import nodes
from tests.faults.nodes import Cluster, Has
from tests.faults.test_nodes import Field
from tests.support import LIMIT_S, wait_until

# What each stage says of itself: its name, its node, and the GPUs that it sees.
SAYS = 'echo "{} $(hostname) [$CUDA_VISIBLE_DEVICES]" >> $LOG'
DVC_YAML = f"""
stages:
  tune: # on a GPU; the second reads the first
    cmd: {SAYS.format("tune")}; sleep 1; cat source > tuned
    deps: [source]
    outs: [tuned]
    meta: {{dvcfleet: {{resources: {{gpus: 1}}}}}}
  score:
    cmd: {SAYS.format("score")}; sleep 3; cat tuned > score
    deps: [tuned]
    outs: [score]
    meta: {{dvcfleet: {{resources: {{gpus: 1}}}}}}
  early:
    foreach: [a, b, c, d]
    do: {{cmd: '{SAYS.format("early-${item}")}; sleep 1; cat source > ${{item}}', deps: [source], outs: ["${{item}}"]}}
  large:
    cmd: {SAYS.format("large")}; cat tuned > large
    deps: [tuned]
    outs: [large]
    meta: {{dvcfleet: {{resources: {{memory: 3GB}}}}}}
  wide:
    cmd: {SAYS.format("wide")}; cat tuned > wide
    deps: [tuned]
    outs: [wide]
    meta: {{dvcfleet: {{resources: {{threads: 3}}}}}}
  whole: # on the run's own machine, which alone has that much memory
    cmd: {SAYS.format("whole")}; cat score a b c d large wide > whole
    deps: [score, a, b, c, d, large, wide]
    outs: [whole]
    meta: {{dvcfleet: {{place: flow, resources: {{memory: 4.5GB}}}}}}
"""
FILES = {
    "source": "s\n",
    "profiles.yaml": "greedy: {stages: {score: {resources: {memory: 3GB}}}}\n",  # of a stage that wants the GPU
}
GPU, CPU = Has(2, 2_000_000_000, ("7",)), Has(3, 4_000_000_000)
EARLY = [f"early-{name}" for name in "abcd"]


@pytest.fixture
def field(tmp_path: Path, prefect_api: str, monkeypatch: pytest.MonkeyPatch) -> Field:
    tried = subprocess.run(["unshare", "--uts", "true"], capture_output=True) if shutil.which("unshare") else None
    if not tried or tried.returncode:
        pytest.skip("a host's name cannot be changed in a namespace here")
    monkeypatch.setenv("PREFECT_API_URL", prefect_api)
    monkeypatch.setenv("LOG", str(tmp_path / "log"))
    monkeypatch.delenv("DVCFLEET_RUN", raising=False)
    return Field(tmp_path, DVC_YAML, FILES)


@pytest.fixture
def flow(field: Field) -> Toy:
    return field.share(2)


@pytest.fixture(params=["dask", pytest.param("ray", marks=pytest.mark.drill)])
def unlike(request: pytest.FixtureRequest, field: Field, flow: Toy) -> Iterator[Cluster]:
    """A cluster of two hosts, the first of which has the GPU."""
    pytest.importorskip(f"prefect_{request.param}")
    made = Cluster(request.param, field.folder / "cluster")
    made.folder.mkdir()
    try:
        made.start_head()
        made.add(field.clones[0], "gpu-node", hostname="gpu-node", has=GPU)
        made.add(field.clones[1], "cpu-node", hostname="cpu-node", has=CPU)
        yield made
    finally:
        made.stop()


def said(field: Field) -> list[list[str]]:
    """What stages said so far: name, host, GPUs."""
    log = field.folder / "log"
    return [line.split() for line in log.read_text().splitlines()] if log.exists() else []


def lose_and_join(field: Field, made: Cluster, printed: Printed) -> str:
    """Kill the GPU's node in its second stage; when the others have ended, let it join; return what was printed."""
    wait_until(lambda: "score" in [name for name, *_ in said(field)])
    made.kill(0)
    wait_until(lambda: all(f"] {name} done" in printed.getvalue() for name in ("large", "wide")))
    wait_until(lambda: "waiting for a node to join" in printed.getvalue())
    before = printed.getvalue()
    made.add(field.clones[0], "gpu-node-again", hostname="gpu-node", has=GPU)
    return before


@pytest.mark.drill  # waits for a node that is lost
def test_stages_go_to_a_node_that_has_what_they_ask_for_and_wait_for_one_that_was_lost(
    field: Field, flow: Toy, unlike: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = {"runner": unlike.kind, "address": unlike.address, "workers": None}
    code, text = flow.run(profile="greedy", **place)
    assert (code, said(field)) == (2, [])
    assert "stage score: asks for 1 threads, 1 GPUs, 3 GB of memory, and no node has all" in text

    printed = Printed()
    with ThreadPoolExecutor(1) as thread:
        losing = thread.submit(lose_and_join, field, unlike, printed)
        code, text = flow.run(printed=printed, **place)
        before = losing.result(LIMIT_S)
    print(text)  # `pytest -s` shows it
    assert code == 0, text
    assert "waiting for a node to join: score asks for 1 threads, 1 GPUs, and no node has all (" in before
    assert " has 3 threads, 0 GPUs, 4 GB" in before
    assert "score done" not in before

    where = {line.stage.replace("@", "-"): line.host for line in executions(flow.path / ".dvcfleet")}
    assert {name: where[name] for name in ("tune", "score", "large", "wide", "whole")} == {
        "tune": "gpu-node",
        "score": "gpu-node",
        "large": "cpu-node",
        "wide": "cpu-node",
        "whole": socket.gethostname(),
    }
    assert sorted(where[name] for name in EARLY) == ["cpu-node"] * 3 + ["gpu-node"]  # it has a thread more
    assert sorted(name for name, *_ in said(field)) == sorted(
        [*EARLY, "large", "score", "score", "tune", "whole", "wide"]
    )
    for name, host, gpus in said(field):
        assert host == where[name]
        assert gpus == ("[7]" if name in ("tune", "score") else "[]")
    assert sorted(nodes.left(field.clones[0])) == sorted(
        line.stage for line in executions(flow.path / ".dvcfleet") if line.host == "gpu-node"
    )
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    assert field.source.run(workers=3)[0] == 0
    assert flow.read("dvc.lock") == field.source.read("dvc.lock")


@pytest.mark.slow
def test_an_outcome_that_is_lost_with_its_node_holds_up_no_other(
    tmp_path: Path, prefect_api: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("prefect_dask")
    monkeypatch.setenv("PREFECT_API_URL", prefect_api)
    from dvcfleet.prefect_adapter.flow import PrefectExecutor, run_flow
    from dvcfleet.runners.dask.cluster import at

    def job(name: str, gpus: int) -> Job:
        command = Command(name, ("/bin/sh", "-c", f"echo {name} >> log"))
        return Job(name, (command,), str(tmp_path), str(tmp_path), resources=Resources(gpus=gpus))

    made = Cluster("dask", tmp_path)
    try:
        made.start_head()
        made.add(tmp_path, "gpu-node", has=GPU)
        with at(made.address, None) as dask:

            def lose_and_go_on() -> dict[str, Ending]:
                with PrefectExecutor(dask, ForkServers(tmp_path), "run") as executor:
                    executor.submit(job("first", gpus=1))
                    wait_until(lambda: any(dask.client.has_what().values()))  # the outcome, which nobody fetched yet
                    made.kill(0)
                    wait_until(lambda: not dask.client.has_what())
                    made.add(tmp_path, "cpu-node", has=CPU)
                    executor.submit(job("second", gpus=0))
                    second = executor.next_outcome(LIMIT_S)
                    made.add(tmp_path, "gpu-node-again", has=GPU)
                    first = executor.next_outcome(LIMIT_S)
                    assert [(each.name, each.exit_code) for each in (second, first)] == [("second", 0), ("first", 0)]
                return {}

            run_flow("lost-outcome", dask.task_runner, lose_and_go_on, {})
    finally:
        made.stop()
    assert (tmp_path / "log").read_text() == "first\nsecond\nfirst\n"
