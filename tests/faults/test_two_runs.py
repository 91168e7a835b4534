"""Runs started at the same moment: one works, the others say who, and nothing is done twice."""

import hashlib
import json
import os
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import chdir
from typing import Any

import pytest
from dvc.repo import Repo

from dvcfleet.messages import Job, NodeWork, Outcome
from dvcfleet.workspaces.nodes.clone import NODE_VARIABLE, RUN_FILE, make_node
from dvcfleet.workspaces.nodes.node import run_on_node
from dvcfleet.workspaces.nodes.object_store import ObjectStore
from tests import PYTHONPATH
from tests.dvcfleet.test_make_node import commit
from tests.dvcfleet.toy import CHAIN, CHAIN_FILES, Make, Toy
from tests.support import python, wait_until
from tests.tiny import dvc

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


# Each writes its output in two parts, and reads its input twice.
NODE_YAML = """
stages:
  one: {cmd: "echo begin > one; sleep 1; echo end >> one", deps: [source], outs: [one]}
  two: {cmd: "cat one > two; sleep 1; cat one >> two", deps: [one], outs: [two]}
"""


@pytest.fixture
def node(toy: Make, monkeypatch: pytest.MonkeyPatch) -> Toy:
    """A node of a repository with a remote."""
    made = toy(NODE_YAML, {"source": "s"})
    dvc(made.path, "remote", "add", "-q", "-d", "store", str(made.path.parent / "remote"))
    commit(made.path)
    make_node(made.path)
    with chdir(made.path), Repo() as repo:
        ObjectStore(repo, print).open()
    monkeypatch.setenv(NODE_VARIABLE, str(made.path))
    return made


def work(node: Toy, name: str, who: str, *inputs: dict[str, Any]) -> Job:
    """What the run of a clone sends a node."""
    with chdir(node.path), Repo() as repo:
        sent = NodeWork("dvc.yaml", name, repo.get_rev(), {RUN_FILE: who}, {}, inputs, {}, (), forced=True)
    return Job(name, (), str(node.path), str(node.path), node=sent)


def at_once(*jobs: Job) -> list[Outcome]:
    """Run jobs on the node, each begun a while after the one before it."""
    with ThreadPoolExecutor(len(jobs)) as threads:
        futures = []
        for job in jobs:
            futures.append(threads.submit(run_on_node, job, print))
            time.sleep(0.4)
        return [future.result() for future in futures]


def digest(text: str) -> str:
    return hashlib.md5(text.encode()).hexdigest()


def test_what_an_earlier_attempt_of_a_stage_still_writes_on_a_node_is_waited_for(node: Toy) -> None:
    outcomes = at_once(work(node, "one", "run"), work(node, "one", "run"))
    assert [outcome.exit_code for outcome in outcomes] == [0, 0], outcomes
    assert [outcome.entry["outs"][0]["md5"] for outcome in outcomes if outcome.entry] == [digest("begin\nend\n")] * 2


def test_a_node_runs_the_stages_of_one_run_at_a_time(node: Toy) -> None:
    (first,) = at_once(work(node, "one", "run"))
    assert first.entry
    two, one = at_once(work(node, "two", "run", *first.entry["outs"]), work(node, "one", "other run"))
    assert (two.exit_code, one.exit_code) == (0, 0), (two, one)
    assert two.entry
    assert two.entry["outs"][0]["md5"] == digest("begin\nend\nbegin\nend\n")


def test_a_folder_in_the_place_of_an_object_on_a_node_is_named_with_what_to_do(node: Toy) -> None:
    (first,) = at_once(work(node, "one", "run"))
    assert first.entry
    path = node.path / ".dvc/cache/files/md5" / digest("begin\nend\n")[:2] / digest("begin\nend\n")[2:]
    path.unlink()
    (node.path / "one").unlink()
    path.mkdir()
    (outcome,) = at_once(work(node, "two", "run", *first.entry["outs"]))
    assert outcome.exit_code == 1
    assert f"{path}: Is a directory: a folder is in the place of a file: move it away" in outcome.why
