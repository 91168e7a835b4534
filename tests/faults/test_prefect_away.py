"""Prefect's server goes away during a run, and comes back or not: what becomes of the stages does not hang on it."""

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests import PYTHONPATH
from tests.dvcfleet.toy import SLOW, Make, Toy, slow_files
from tests.support import LIMIT_S

RUN = "from flows.__main__ import start; start()"
NAMES = "abcdefgh"


class PrefectServer:
    """`prefect server start` at a port that stays the same, as somebody would have it for many runs."""

    def __init__(self, home: Path) -> None:
        with socket.socket() as found:
            found.bind(("127.0.0.1", 0))
            self._port = found.getsockname()[1]
        self.api = f"http://127.0.0.1:{self._port}/api"
        self._home = home
        self.start()

    def start(self) -> None:
        """Start it, and wait until it answers."""
        address = ["--host", "127.0.0.1", "--port", str(self._port), "--no-ui"]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "prefect", "server", "start", *address],
            env=environment | {"PREFECT_HOME": str(self._home), "PREFECT_SERVER_ANALYTICS_ENABLED": "false"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            try:
                with urllib.request.urlopen(f"{self.api}/health", timeout=5):
                    return
            except (urllib.error.URLError, ConnectionError, TimeoutError):
                time.sleep(0.2)
        raise AssertionError("the Prefect server did not start")

    def kill(self) -> None:
        """End it with SIGKILL, and all that belongs to it."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[PrefectServer]:
    started = PrefectServer(tmp_path / "prefect")
    yield started
    started.kill()


def start(toy: Toy, api: str | None) -> "subprocess.Popen[str]":
    """Start a run that uses a server, or brings its own."""
    environment = {name: value for name, value in os.environ.items() if name != "PREFECT_API_URL"}
    return subprocess.Popen(
        [sys.executable, "-c", RUN, "run", "--workers", "2"],
        cwd=toy.path,
        env=environment | {"PYTHONPATH": PYTHONPATH} | ({"PREFECT_API_URL": api} if api else {}),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def wait_for(toy: Toy, run: "subprocess.Popen[str]", stages: int) -> None:
    """Wait until so many stages have begun."""
    log = toy.path / "log"
    while run.poll() is None and not (log.exists() and len(log.read_text().split()) >= stages):
        time.sleep(0.05)


@pytest.mark.drill
def test_a_run_goes_on_while_its_server_is_restarted(toy: Make, server: PrefectServer) -> None:
    slow = toy(SLOW, slow_files(NAMES))
    run = start(slow, server.api)
    wait_for(slow, run, 3)
    server.kill()
    server.start()
    said, _ = run.communicate(timeout=LIMIT_S)
    assert run.returncode == 0, said
    assert "Traceback" not in said
    assert sorted(slow.ran()) == list(NAMES)
    assert slow.settled()


@pytest.mark.drill
def test_a_run_ends_well_when_its_own_server_is_killed(toy: Make) -> None:
    slow = toy(SLOW, slow_files(NAMES))
    run = start(slow, None)
    wait_for(slow, run, 3)
    for child in psutil.Process(run.pid).children():
        if "dvcfleet.prefect_adapter.server" in child.cmdline():
            child.kill()
    said, _ = run.communicate(timeout=LIMIT_S)
    assert run.returncode == 0, said
    assert "Traceback" not in said
    assert "Prefect's server did not receive all of this run" in said
    assert sorted(slow.ran()) == list(NAMES)
    assert slow.settled()
