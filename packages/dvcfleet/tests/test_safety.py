"""What runs listens on loopback only, and shows no credential."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from tests import PYTHONPATH
from tests.dvcfleet.toy import Make, Toy
from tests.support import LIMIT_S, forking, python

ROOT = Path(__file__).parents[2]
SECRET = "no-one-may-read-this"


@contextmanager
def at_work(folder: Path, *args: str, command: Sequence[str] = (sys.executable,)) -> Iterator["subprocess.Popen[str]"]:
    """Run the command line in a folder by a Python, with servers of its own, and end it in order."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_API")}
    environment |= {"PYTHONPATH": PYTHONPATH, "MLFLOW_TRACKING_URI": f"sqlite:///{folder}/mlflow.db"}
    with subprocess.Popen(
        [*command, "-m", "merganser.flows", *args],
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


def listening(pid: int) -> set[str]:
    """The addresses at which a process and those below it take connections."""
    family = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
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


@pytest.mark.drill
def test_the_pages_listen_on_loopback_only(toy: Make) -> None:
    empty = toy("stages: {a: {cmd: echo 1 > x, outs: [x]}}", {})
    with at_work(empty.path, "ui") as process:
        assert process.stdout
        assert [process.stdout.readline().split()[1].rpartition(":")[0] for _ in range(3)] == ["http://127.0.0.1"] * 3
        assert listening(process.pid) == {"127.0.0.1"}


@pytest.mark.slow
def test_no_credential_reaches_what_a_run_prints_and_keeps(toy: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STORE_TOKEN", SECRET)
    telling = toy(TELLING, {"look.py": LOOK})
    with forking(), at_work(telling.path, "run", command=python()) as process:
        said = process.communicate(timeout=LIMIT_S)[0]
    assert process.returncode == 1
    assert "token is ***" in said
    assert "https://***@host/x" in said
    kept = [path for path in (telling.path / ".dvcfleet").rglob("*") if path.is_file()]
    assert any(b"token is ***" in path.read_bytes() for path in kept)
    for secret in (SECRET, "opensesame"):
        assert secret not in said
        assert [path for path in kept if secret.encode() in path.read_bytes()] == []
    check_own_secret(telling)


TELLING = f"""
stages:
  a:
    cmd: echo token is $STORE_TOKEN; echo "https://me:open""sesame@host/x is away"; exit 1
    outs: [x]
  b:
    cmd: {sys.executable} look.py
    outs: [seen, secret: {{cache: false}}]
"""
LOOK = """
import os
from contextlib import suppress
from pathlib import Path
(file,) = Path(".dvcfleet/prefect").glob("secret-*")
commands = ""
for command in Path("/proc").glob("[0-9]*/cmdline"):
    with suppress(OSError):  # it has ended
        commands += command.read_text(errors="replace")
assert "look.py" in commands
secret = file.read_text()
in_commands, in_environment = secret.split(":")[1] in commands, secret in os.environ.values()
Path("seen").write_text(f"{oct(file.stat().st_mode)} {in_commands} {in_environment}")
Path("secret").write_text(secret)
"""


def check_own_secret(looked: Toy) -> None:
    """Raise AssertionError unless the secret of the run's own server was the user's alone, and ended with it."""
    assert looked.read("seen") == "0o100600 False False"
    secret = looked.read("secret")
    assert len(secret) > 40
    assert secret != os.environ["PREFECT_API_AUTH_STRING"]
    kept = [path for path in looked.path.rglob("*") if path.is_file() and secret.encode() in path.read_bytes()]
    assert kept == [looked.path / "secret"]


def test_addresses_are_shown_without_their_passwords(toy: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFECT_API_URL", "http://me:opensesame@127.0.0.1:1/api")
    broken: Toy = toy("stages: {a: {cmd: echo 1 > x, outs: [x]}}", {})
    code, said = broken.run()
    assert code == 2
    assert "PREFECT_API_URL: no server answers at http://***@127.0.0.1:1/api" in said
    assert "opensesame" not in said
