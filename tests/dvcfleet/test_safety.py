"""What runs listens on loopback only, and shows no credential."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from tests.dvcfleet.toy import Make, Toy
from tests.waiting import LIMIT_S, wait_until

ROOT = Path(__file__).parents[2]
SLOW = "stages: {a: {cmd: touch started; sleep 600; echo 1 > x, outs: [x]}}"
SECRET = "no-one-may-read-this"


@contextmanager
def at_work(folder: Path, *args: str) -> Iterator["subprocess.Popen[str]"]:
    """Run the command line in a folder, with servers of its own, and end it in order."""
    environment = {name: value for name, value in os.environ.items() if name != "PREFECT_API_URL"}
    environment |= {"PYTHONPATH": str(ROOT), "MLFLOW_TRACKING_URI": f"sqlite:///{folder}/mlflow.db"}
    with subprocess.Popen(
        [sys.executable, "-m", "flows", *args],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            yield process
            process.send_signal(signal.SIGTERM)
            process.wait(LIMIT_S)
        finally:
            process.kill()


def listening(process: "subprocess.Popen[str]") -> set[str]:
    """The addresses at which a process and those below it take connections."""
    family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
    found = set()
    for member in family:
        try:
            found |= {each.laddr.ip for each in member.net_connections("inet") if each.status == psutil.CONN_LISTEN}
            found |= {each.laddr.ip for each in member.net_connections("udp") if not each.raddr}
        except psutil.NoSuchProcess:
            continue
    return found


def test_a_socket_on_all_addresses_would_be_seen() -> None:
    with socket.socket() as listener:
        listener.bind(("0.0.0.0", 0))
        listener.listen()
        own = {each.laddr.ip for each in psutil.Process().net_connections("inet") if each.status == psutil.CONN_LISTEN}
    assert "0.0.0.0" in own


@pytest.mark.slow
@pytest.mark.parametrize("runner", ["threads", pytest.param("processes", marks=pytest.mark.drill)])
def test_a_run_listens_on_loopback_only(toy: Make, runner: str) -> None:
    slow = toy(SLOW, {})
    with at_work(slow.path, "run", "--runner", runner) as process:
        wait_until((slow.path / "started").exists)
        assert listening(process) == {"127.0.0.1"}


@pytest.mark.drill
def test_the_pages_listen_on_loopback_only(toy: Make) -> None:
    empty = toy("stages: {a: {cmd: echo 1 > x, outs: [x]}}", {})
    with at_work(empty.path, "ui") as process:
        assert process.stdout
        assert [process.stdout.readline().split()[1].rpartition(":")[0] for _ in range(3)] == ["http://127.0.0.1"] * 3
        assert listening(process) == {"127.0.0.1"}


@pytest.mark.slow
def test_no_credential_reaches_what_a_run_prints_and_keeps(toy: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STORE_TOKEN", SECRET)
    telling = toy(TELLING, {})
    with at_work(telling.path, "run") as process:
        said = process.communicate(timeout=LIMIT_S)[0]
    assert process.returncode == 1
    assert "token is ***" in said
    assert "https://***@host/x" in said
    kept = [path for path in (telling.path / ".dvcfleet").rglob("*") if path.is_file()]
    assert any(b"token is ***" in path.read_bytes() for path in kept)
    for secret in (SECRET, "opensesame"):
        assert secret not in said
        assert [path for path in kept if secret.encode() in path.read_bytes()] == []


TELLING = """
stages:
  a:
    cmd: echo token is $STORE_TOKEN; echo "https://me:open""sesame@host/x is away"; exit 1
    outs: [x]
"""


def test_addresses_are_shown_without_their_passwords(toy: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFECT_API_URL", "http://me:opensesame@127.0.0.1:1/api")
    broken: Toy = toy("stages: {a: {cmd: echo 1 > x, outs: [x]}}", {})
    code, said = broken.run()
    assert code == 2
    assert "PREFECT_API_URL: no server answers at http://***@127.0.0.1:1/api" in said
    assert "opensesame" not in said
