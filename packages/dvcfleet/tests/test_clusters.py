"""Real clusters on this machine's loopback: one of Ray's, and one of Dask's."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from dvcfleet.errors import UserError
from dvcfleet.planning.resources import Resources
from dvcfleet.scheduling.resource_pool import Capacity, Machine, cluster_pool
from tests import PYTHONPATH
from tests.dvcfleet.cluster import ROOT, free_port, started
from tests.dvcfleet.test_command_line import dvcfleet
from tests.dvcfleet.test_gpus import GPU_STAGES, GPUS, check_gpus
from tests.dvcfleet.test_run import FAMILY, FAMILY_FILES
from tests.dvcfleet.toy import Make, Toy
from tests.support import LIMIT_S, python, wait_for, wait_until

pytestmark = pytest.mark.slow


RAY = pytest.param("ray", marks=pytest.mark.drill)  # takes three times as long as Dask


@pytest.fixture(scope="module", params=[RAY, "dask"])
def cluster(request: pytest.FixtureRequest, prefect_api: str, ray_token: None) -> Iterator[tuple[str, str]]:
    """A cluster with two threads and two GPUs, which are made up: the runner's name and the address."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CUDA_VISIBLE_DEVICES", ",".join(GPUS))
        with started(request.param, prefect_api, gpus=len(GPUS)) as cluster:
            patch.undo()  # those of the run's own machine do not count
            yield cluster.runner, cluster.address


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory, prefect_api: str) -> Toy:
    """The repository after a run in threads on this machine."""
    toy = Toy(tmp_path_factory.mktemp("here") / "toy", FAMILY, FAMILY_FILES)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PREFECT_API_URL", prefect_api)
        assert toy.run()[0] == 0
    return toy


def note_listeners(heard: set[str], ended: threading.Event) -> None:
    """Note the addresses at which the processes of this one's cluster listen, until it has ended."""
    while not ended.wait(1):
        for process in psutil.Process().children(recursive=True):
            with suppress(psutil.Error):
                sockets = process.net_connections(kind="inet")
                heard.update(each.laddr.ip for each in sockets if each.status == psutil.CONN_LISTEN)


@pytest.mark.parametrize("runner", [RAY, "dask"])
def test_a_cluster_of_the_runs_own_makes_the_same_bytes(toy: Make, here: Toy, runner: str) -> None:
    pytest.importorskip(f"prefect_{runner}")
    family = toy(FAMILY, FAMILY_FILES)
    heard: set[str] = set()
    ended = threading.Event()
    listener = threading.Thread(target=note_listeners, args=[heard, ended])
    listener.start()
    code, text = family.run(runner=runner)
    ended.set()
    listener.join()
    assert code == 0, text
    assert family.read("dvc.lock") == here.read("dvc.lock")
    assert family.read("all.txt") == here.read("all.txt")
    assert heard
    assert all(address.removeprefix("::ffff:") == "127.0.0.1" for address in heard)
    assert family.settled()


def test_a_cluster_at_an_address_makes_the_same_bytes(toy: Make, here: Toy, cluster: tuple[str, str]) -> None:
    runner, address = cluster
    family = toy(FAMILY, FAMILY_FILES)
    code, text = family.run(runner=runner, address=address, workers=None)
    assert code == 0, text
    assert family.read("dvc.lock") == here.read("dvc.lock")
    assert family.settled()


# The parent of a command is a fork server, its parent waits for it, and the parent of that is the worker.
KILLS_ITS_WORKER = """
stages:
  killer:
    cmd: >-
      parent() { awk '/^PPid/ {print $2}' /proc/$1/status; };
      echo killer >> log; [ -e killed ] ||
      { touch killed; kill -9 $(parent $(parent $PPID)); sleep 60; }; echo 1 > out
    deps: [source]
    outs: [out]
  other: {cmd: "echo other >> log; sleep 1; echo 2 > other.txt", deps: [source], outs: [other.txt]}
"""


def test_a_stage_whose_worker_is_killed_is_started_again(toy: Make, cluster: tuple[str, str]) -> None:
    runner, address = cluster
    killing = toy(KILLS_ITS_WORKER, {"source": ""})
    code, text = killing.run(runner=runner, address=address)
    assert code == 0, text
    # One worker of Ray's does one stage; Dask's does as many as it has threads, and is started again with all.
    assert killing.ran().count("killer") == 2
    assert killing.read("out") == "1\n"
    assert killing.settled()
    if runner == "ray":
        assert "killer is started again: its worker was lost" in text


def test_meta_is_honoured_on_a_cluster(toy: Make, cluster: tuple[str, str]) -> None:
    runner, address = cluster
    asking = toy(
        """
        stages:
          wide:
            cmd: 'mkdir busy && sleep 0.5 && rmdir busy && echo $OMP_NUM_THREADS > wide'
            deps: [source]
            outs: [wide]
            meta: {dvcfleet: {resources: {threads: 2, memory: 1MB}}}
          other:
            cmd: 'mkdir busy && sleep 0.5 && rmdir busy && echo "[$CUDA_VISIBLE_DEVICES]" > other'
            deps: [source]
            outs: [other]
          flaky:
            cmd: 'echo flaky >> log; test $(grep -c flaky log) -gt 1 && echo 1 > flaky'
            deps: [source, wide, other]
            outs: [flaky]
            meta: {dvcfleet: {retries: 1}}
          slow: {cmd: "sleep 60", deps: [source, flaky], outs: [slow.txt], meta: {dvcfleet: {timeout: 1s}}}
        """,
        {"source": ""},
    )
    code, text = asking.run(runner=runner, address=address, workers=4)
    assert code == 1
    assert "slow failed: took longer than the 1 s of its timeout" in text
    assert asking.ran() == ["flaky", "flaky"]
    assert asking.read("other") == "[]\n"
    if "OMP_NUM_THREADS" not in os.environ:
        assert asking.read("wide") == "2\n"


def test_a_stage_that_no_node_can_run_is_refused_by_name(toy: Make, cluster: tuple[str, str]) -> None:
    runner, address = cluster
    greedy = toy(
        "stages: {a: {cmd: echo a >> log, deps: [source], outs: [x], meta: {dvcfleet: {resources: {gpus: 3}}}}}",
        {"source": ""},
    )
    code, text = greedy.run(runner=runner, address=address)
    assert (code, greedy.ran()) == (2, [])
    assert re.search("stage a: asks for 1 threads, 3 GPUs, and no node has all .* has 2 threads", text)


def test_gpu_stages_on_a_cluster_at_an_address_have_gpus_of_their_own(toy: Make, cluster: tuple[str, str]) -> None:
    runner, address = cluster
    check_gpus(toy(GPU_STAGES, {"source": ""}), runner=runner, address=address)


def test_an_interrupted_run_ends_its_commands_on_the_workers(toy: Make, cluster: tuple[str, str]) -> None:
    runner, address = cluster
    lasting = f"sleep 611.{os.getpid()}"
    slow = toy(
        f'stages: {{slow: {{cmd: "touch started; [ -e hurry ] || {lasting}; echo 2 > x", deps: [source], outs: [x]}}}}',
        {"source": ""},
    )
    threading.Thread(target=interrupt_when, args=[slow.path / "started"]).start()
    code, text = slow.run(runner=runner, address=address)
    assert code == 128 + signal.SIGINT
    assert "1 stopped" in text
    wait_until(lambda: not is_running(lasting))
    (slow.path / "hurry").touch()
    assert slow.run(runner=runner, address=address)[0] == 0
    assert slow.settled()


@pytest.mark.drill  # test_server.py tries it every day without a cluster
@pytest.mark.parametrize("runner", ["ray", "dask"])
def test_ctrl_c_at_a_terminal_ends_a_cluster_of_the_runs_own(toy: Make, runner: str) -> None:
    pytest.importorskip(f"prefect_{runner}")
    lasting = f"sleep 613.{os.getpid()}"
    slow = toy(f"stages: {{slow: {{cmd: 'touch started; {lasting}', deps: [source], outs: [x]}}}}", {"source": ""})
    # A terminal sends the signal to all processes of the group, those of the cluster too.
    command = [
        sys.executable,
        "-m",
        "merganser.flows",
        "run",
        "--runner",
        runner,
        "--workers",
        "1",
        "--repo",
        str(slow.path),
    ]
    process = subprocess.Popen(
        command, cwd=ROOT, start_new_session=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    wait_for(slow.path / "started", process)
    time.sleep(0.5)
    os.killpg(process.pid, signal.SIGINT)
    text, _ = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 128 + signal.SIGINT
    assert "1 stopped" in text
    assert "Traceback" not in text
    assert not is_running(lasting)


def interrupt_when(path: Path) -> None:
    wait_until(path.exists)
    time.sleep(0.5)
    os.kill(os.getpid(), 2)


def test_commands_end_on_the_workers_when_the_run_is_killed(toy: Make, cluster: tuple[str, str]) -> None:
    runner, address = cluster
    lasting = f"sleep 612.{os.getpid()}"
    slow = toy(f"stages: {{slow: {{cmd: 'touch started; {lasting}', deps: [source], outs: [slow]}}}}", {"source": ""})
    code = f"from dvcfleet.run import run; from pathlib import Path; run(repo=Path(), runner={runner!r}, "
    process = subprocess.Popen(
        [*python(), "-c", f"{code} address={address!r})"],
        cwd=slow.path,
        env=os.environ | {"PYTHONPATH": PYTHONPATH},
        stdout=subprocess.PIPE,
        text=True,
    )
    wait_for(slow.path / "started", process)
    process.kill()
    process.communicate()
    wait_until(lambda: not is_running(lasting))


def is_running(command: str) -> bool:
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if path.read_text().replace("\0", " ").strip() == command:
                return True
        except OSError:
            continue
    return False


@pytest.mark.drill
@pytest.mark.parametrize(("scheme", "advice"), [("tcp", ""), ("tls", "; set DASK_DISTRIBUTED__COMM__TLS__CA_FILE, ")])
def test_no_cluster_at_the_address_is_the_users_mistake(toy: Make, scheme: str, advice: str) -> None:
    pytest.importorskip("prefect_dask")
    family = toy(FAMILY, FAMILY_FILES)
    code, text = family.run(runner="dask", address=f"{scheme}://127.0.0.1:{free_port()}")
    assert (code, family.ran()) == (2, [])
    assert f"no Dask scheduler answers at {scheme}://127.0.0.1:" in text
    assert advice in text


def test_a_token_that_ray_asks_for_and_does_not_find_is_the_users_to_give(
    toy: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pytest.importorskip("prefect_ray")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("RAY_AUTH_TOKEN")
    text = dvcfleet(toy(FAMILY, FAMILY_FILES).path, "run", "--runner", "ray", "--address", "127.0.0.1:9", code=2)
    assert "no Ray cluster answers at 127.0.0.1:9: Token authentication is enabled but no authentication token" in text
    assert "set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN" in text


def test_a_cluster_without_workers_needs_to_be_told_how_many_there_will_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:4200/api")
    with pytest.raises(UserError, match="the Dask cluster has no workers; start one, or say with --workers how many"):
        cluster_pool("the Dask cluster", [], None, {"a": Resources(gpus=8)})
    assert cluster_pool("the Dask cluster", [], 9, {"a": Resources(gpus=8)}).threads == 9


def test_a_stage_must_fit_one_node_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:4200/api")
    machines = [Machine("a", "127.0.0.1", Capacity(8, 1e9, 0)), Machine("b", "127.0.0.1", Capacity(1, 1e9, 4))]
    assert cluster_pool("it", machines, None, {"s": Resources(threads=8), "t": Resources(gpus=4)}).threads == 9
    with pytest.raises(UserError, match="stage s: asks for 2 threads, 1 GPUs, and no node has all"):
        cluster_pool("it", machines, None, {"s": Resources(threads=2, gpus=1)})


def test_a_dask_worker_that_has_not_declared_yet_what_it_has_is_not_counted() -> None:
    distributed = pytest.importorskip("distributed")
    from dvcfleet.runners.dask.cluster import DaskCluster, DeclaredResources

    here = {"host": "127.0.0.1", "protocol": "tcp://", "dashboard_address": None, "processes": False}
    with (
        distributed.LocalCluster(n_workers=1, threads_per_worker=3, **here) as local,
        distributed.Client(local, set_as_default=False) as client,
    ):
        cluster = DaskCluster(None, client, local.scheduler_address, None)
        assert cluster.machines() == []  # as one that joins when a run begins
        client.register_plugin(DeclaredResources({}))
        assert [machine.has.threads for machine in cluster.machines()] == [3]


def test_a_node_that_cannot_reach_prefects_server_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    away = [Machine("a", "192.0.2.7", Capacity(8, 1e9, 0))]
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:4200/api")
    with pytest.raises(UserError, match=r"listens on this machine only, and 192\.0\.2\.7 is another"):
        cluster_pool("it", away, None, {})
    monkeypatch.setenv("PREFECT_API_URL", "http://192.0.2.1:4200/api")
    assert cluster_pool("it", away, None, {}).threads == 8
