"""`merganser ui`: which pages it serves, where, and that nothing is left of them."""

import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from tests import PYTHONPATH
from tests.dvcfleet.toy import CHAIN, CHAIN_FILES, Make
from tests.support import LIMIT_S, wait_until

ELSEWHERE = {"PREFECT_API_URL": "http://prefect.example/api", "MLFLOW_TRACKING_URI": "http://mlflow.example"}


@contextmanager
def serving(folder: Path, *args: str, **variables: str) -> Iterator["subprocess.Popen[str]"]:
    """Serve the pages of a folder, and end whatever of it a failed test leaves."""
    environment = {name: value for name, value in os.environ.items() if name not in ELSEWHERE}
    command = [sys.executable, "-m", "merganser.flows", "ui", "--no-browser", *args]
    with subprocess.Popen(
        command, cwd=folder, env=environment | {"PYTHONPATH": PYTHONPATH} | variables, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            for each in (
                [*psutil.Process(process.pid).children(recursive=True), process] if process.poll() is None else ()
            ):
                each.kill()


def addresses(process: "subprocess.Popen[str]") -> dict[str, str]:
    """Read the addresses that are printed, up to the line that ends them."""
    assert process.stdout
    lines = list[str]()
    for line in process.stdout:
        if line == "Ctrl-C stops all.\n":
            return {line.split()[0]: line.split()[1] for line in lines}
        lines.append(line)
    raise AssertionError("it ended")


def read(address: str) -> str:
    with urllib.request.urlopen(address, timeout=LIMIT_S) as page:
        return page.read().decode()


def test_the_start_page_links_to_servers_elsewhere_and_ends_with_its_terminal(toy: Make) -> None:
    chain = toy(CHAIN, CHAIN_FILES)
    with serving(chain.path, **ELSEWHERE) as process:
        found = addresses(process)
        page = read(found["Start"])
        runs = "http://mlflow.example/#/experiments?workflowType=machine_learning"
        assert {"http://prefect.example", runs} <= set(re.findall(r'href="([^"]+)"', page))
        process.send_signal(signal.SIGHUP)
        assert process.wait(LIMIT_S) == 0
    with pytest.raises(OSError, match="refused"):
        read(found["Start"])


def test_a_port_in_use_is_said_and_another_taken(toy: Make) -> None:
    chain = toy(CHAIN, CHAIN_FILES)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with serving(chain.path, "--port", str(port), **ELSEWHERE) as process:
            assert process.stdout
            assert process.stdout.readline().startswith(f"port {port}: Address already in use")
            start = addresses(process)["Start"]
            assert not start.endswith(f":{port}")
            assert "<html" in read(start)
            process.send_signal(signal.SIGINT)
            assert process.wait(LIMIT_S) == 0


@pytest.mark.drill
def test_all_pages_are_served_until_it_is_told_to_stop(toy: Make) -> None:
    chain = toy(CHAIN, CHAIN_FILES)
    with serving(chain.path, MLFLOW_TRACKING_URI=f"sqlite:///{chain.path}/mlflow.db") as process:
        found = addresses(process)
        assert list(found) == ["Start", "Prefect", "MLflow"]
        assert all("<html" in read(address).lower() for address in found.values())
        family = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGINT)
        assert process.wait(LIMIT_S) == 0
    wait_until(lambda: not any(each.is_running() and each.status() != psutil.STATUS_ZOMBIE for each in family))
    for address in found.values():
        with pytest.raises(OSError, match="refused"):
            read(address)
