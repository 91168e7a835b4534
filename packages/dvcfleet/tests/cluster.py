"""Real clusters on this machine's loopback, of one node."""

import os
import re
import shutil
import signal
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests import PYTHONPATH, warm
from tests.support import LIMIT_S, wait_until
from tests.warm import Started

ROOT = Path(__file__).parents[2]
# By default each process of Dask looks fifty times a second whether it is late.
SELDOM = {"DASK_DISTRIBUTED__ADMIN__TICK__INTERVAL": "1s"}


def free_port() -> int:
    """Return a free port of loopback."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def answers(port: int) -> bool:
    with socket.socket() as caller:
        return caller.connect_ex(("127.0.0.1", port)) == 0


def address_in(log: Path) -> str:
    """Return where a Dask scheduler listens, when it has written that into its log."""
    wait_until(lambda: re.search(r"Scheduler at: .*\n", log.read_text()))
    return re.findall(r"Scheduler at: +(\S+)\n", log.read_text())[0]


@dataclass
class Cluster:
    """A cluster: its runner's name, its address, and its processes, the head's first; each leads a group."""

    runner: str
    address: str = ""
    processes: list[Started] = field(default_factory=list)

    def kill(self) -> None:
        """Kill all of it at once, as a power cut would."""
        for process in self.processes:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@contextmanager
def started(runner: str, prefect_api: str, threads: int = 2, gpus: int = 0) -> Iterator[Cluster]:
    """Start a cluster, and end it; Dask takes its GPUs from CUDA_VISIBLE_DEVICES."""
    pytest.importorskip("prefect_ray" if runner == "ray" else "prefect_dask")
    # The paths of Ray's sockets are long.
    folder = Path(tempfile.mkdtemp(prefix="mc-", dir="/tmp"))
    code = os.pathsep.join([PYTHONPATH, os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"PYTHONPATH": code, "RAY_USAGE_STATS_ENABLED": "0"}
    environment |= {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "PREFECT_API_URL": prefect_api} | SELDOM
    environment.pop("PREFECT_API_AUTH_STRING", None)  # the run itself brings it
    cluster = Cluster(runner)

    def start(command: str) -> Path:
        path = folder / f"log{len(cluster.processes)}"
        with open(path, "wb") as log:
            command_line = ["-m", *command.split()]
            cluster.processes.append(warm.start(command_line, folder, environment, log.fileno(), log.fileno()))
        return path

    try:
        if runner == "ray":
            port = free_port()
            cluster.address = f"127.0.0.1:{port}"
            start(
                f"ray.scripts.scripts start --head --block --node-ip-address 127.0.0.1 --port {port}"
                f" --num-cpus {threads} --num-gpus {gpus} --include-dashboard=false --temp-dir {folder}"
            )
            wait_until(lambda: answers(port))
        else:
            from distributed import Client

            cluster.address = address_in(
                start("distributed.cli.dask_scheduler --host 127.0.0.1 --port 0 --no-dashboard")
            )
            start(
                f"distributed.cli.dask_worker {cluster.address} --nthreads {threads} --no-dashboard"
                f" --local-directory {folder}"
            )

            with Client(cluster.address, set_as_default=False) as client:
                client.wait_for_workers(1, timeout=LIMIT_S)
        yield cluster
    finally:
        for process in reversed(cluster.processes):
            process.terminate()
            process.wait(LIMIT_S)
        shutil.rmtree(folder)
