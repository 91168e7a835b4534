import contextlib
import os
import re
import shutil
import signal
import sqlite3
import ssl
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryFile

import psutil
import pytest

from dvcfleet.errors import FailedError
from dvcfleet.prefect_adapter.server import PrefectServer
from dvcfleet.services import check_server
from tests import PYTHONPATH
from tests.dvcfleet.test_safety import listening
from tests.dvcfleet.toy import CHAIN, CHAIN_FILES, Make, Toy
from tests.support import LIMIT_S, forking, python, start, wait_for, wait_until
from tests.warm import Started

ROOT = Path(__file__).parents[2]
ENDLESS = "stages: {a: {cmd: touch started; sleep 600; echo 1 > x, outs: [x]}}"

REPORTING = """
import asyncio
from prefect import flow
from prefect.client.orchestration import get_client
from prefect.states import Completed, Pending, Running

@flow
def reports(): pass

async def report():
    async with get_client() as client:
        for _ in range(8):
            run = await client.create_flow_run(reports, state=Pending())
            await client.set_flow_run_state(run.id, Running())
            await client.set_flow_run_state(run.id, Completed())

async def main():
    await asyncio.gather(*(report() for _ in range(8)))

asyncio.run(main())
"""


def run_in(folder: Path, code: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "PREFECT_API_URL"}
    environment["PYTHONPATH"] = PYTHONPATH
    return subprocess.run(
        [*python(), "-c", code], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


RUN = "import sys; from pathlib import Path; from dvcfleet.run import run; sys.exit(run(repo=Path()))"


@pytest.mark.slow
def test_a_run_brings_its_own_server_and_stops_it_in_order(toy: Make) -> None:
    chain = toy(CHAIN, CHAIN_FILES)
    with forking():
        first = run_in(chain.path, RUN)
    assert (first.returncode, first.stderr) == (0, "")
    assert "3 done" in first.stdout
    database = chain.path / ".dvcfleet/prefect/prefect.db"
    assert database.exists()
    assert servers_of(chain.path) == []
    written = database.stat().st_mtime_ns
    second = run_in(chain.path, RUN)
    assert (second.returncode, second.stderr) == (0, "")
    # No server was started: nobody touched its database.
    assert database.stat().st_mtime_ns == written
    with closing(sqlite3.connect(database)) as store:
        names = store.execute("SELECT name, state_name FROM task_run ORDER BY name").fetchall()
    assert names == [("cut", "Completed"), ("end", "Completed"), ("turn", "Completed")]


def servers_of(repository: Path) -> list[int]:
    """The Prefect servers at work for a repository."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get("PREFECT_HOME", "").startswith(str(repository)):
                found.append(process.pid)
    return found


def server_of(repository: Path) -> int:
    """The process that is the repository's server."""
    (secret,) = (repository / ".dvcfleet/prefect").glob("secret-*")
    port = int(secret.name.partition("-")[2])
    found = [each for each in psutil.net_connections("inet") if each.laddr and each.laddr.port == port]
    (server,) = {each.pid for each in found if each.status == psutil.CONN_LISTEN}
    assert server
    return server


@pytest.mark.slow
@pytest.mark.parametrize("runner", ["threads", pytest.param("processes", marks=pytest.mark.drill)])
def test_a_run_listens_on_loopback_only_and_ctrl_c_stops_it_in_order(toy: Make, runner: str) -> None:
    slow = toy(ENDLESS, {})
    heard = set()

    def interrupt(process: Started) -> None:
        server = server_of(slow.path)
        heard.update(listening(process.pid) | listening(server))
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does it: to all processes of the run
        os.kill(server, signal.SIGINT)

    command = ["-c", "from merganser.flows.commands.cli import main; main()", "run", "--runner", runner]
    with forking():
        environment = {name: value for name, value in os.environ.items() if name != "PREFECT_API_URL"}
        code, printed, errors = stopped(slow, command, interrupt, environment)
    assert heard == {"127.0.0.1"}
    assert (code, errors) == (128 + signal.SIGINT, "")
    assert "a stopped: stopped before it ended" in printed
    assert "did not receive all" not in printed


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kill", "runner"),
    [
        (os.kill, "threads"),
        pytest.param(os.kill, "processes", marks=pytest.mark.drill),
        pytest.param(os.killpg, "threads", marks=pytest.mark.drill),
    ],
    ids=["the run", "the run, which has hosts", "all of its processes"],
)
def test_a_run_stops_in_order_when_terminated(toy: Make, kill: Callable[[int, int], None], runner: str) -> None:
    code, printed, errors = stopped(
        toy(ENDLESS, {}),
        ["-m", "merganser.flows", "run", "--runner", runner],
        lambda each: kill(each.pid, signal.SIGTERM),
    )
    assert (code, errors) == (128 + signal.SIGTERM, "")
    assert "a stopped" in printed


@pytest.mark.slow
def test_a_killed_run_counts_as_crashed_once_it_is_continued(toy: Make) -> None:
    slow = toy("stages: {a: {cmd: touch started; test -e again || sleep 600; echo 1 > x, outs: [x]}}", {})

    def states(table: str) -> list[tuple[str]]:
        with closing(sqlite3.connect(slow.path / ".dvcfleet/prefect/prefect.db")) as database:
            return database.execute(f"SELECT state_type FROM {table} ORDER BY start_time").fetchall()

    def kill(run: Started) -> None:
        wait_until(lambda: states("task_run") == [("RUNNING",)])
        os.killpg(run.pid, signal.SIGKILL)

    with forking():
        own = {name: value for name, value in os.environ.items() if name != "PREFECT_API_URL"}
        code, _, _ = stopped(slow, ["-m", "merganser.flows", "run"], kill, own)
        assert code == -signal.SIGKILL
        (slow.path / "again").touch()
        assert run_in(slow.path, RUN).returncode == 0
    for table in ("flow_run", "task_run"):
        assert states(table) == [("CRASHED",), ("COMPLETED",)], table


@pytest.mark.slow
def test_a_stage_of_which_nothing_more_is_heard_is_said_to_be_stopped(toy: Make) -> None:
    impatient = "from dvcfleet import loop; loop.STOP_LIMIT_S = 0; from flows.__main__ import start; start()"
    code, printed, errors = stopped(
        toy(ENDLESS, {}), ["-c", impatient, "run"], lambda each: os.killpg(each.pid, signal.SIGTERM)
    )
    assert (code, errors) == (128 + signal.SIGTERM, "")
    assert "a stopped" in printed
    assert "1 stopped" in printed


def stopped(
    slow: Toy, command: list[str], stop: Callable[[Started], None], environment: Mapping[str, str] = os.environ
) -> tuple[int, str, str]:
    """Start a run, stop it in its stage; return its exit code and what it printed."""
    with TemporaryFile("w+") as printed, TemporaryFile("w+") as errors:
        variables = {**environment, "PYTHONPATH": PYTHONPATH}
        process = start(command, slow.path, variables, printed.fileno(), errors.fileno())
        try:
            wait_for(slow.path / "started", process)
            stop(process)
            code = process.wait(LIMIT_S)
        finally:
            process.kill()
        said = []
        for file in (printed, errors):
            file.seek(0)
            said.append(file.read())
    return code, said[0], said[1]


def test_a_damaged_database_is_kept_beside_a_new_one(tmp_path: Path) -> None:
    (tmp_path / "prefect.db").write_text("no database")
    with forking():
        server = PrefectServer(tmp_path)
    try:
        server.wait()
        assert [path.read_text() for path in tmp_path.glob("prefect.db.damaged-*")] == ["no database"]
        assert any("was damaged" in line for line in server.notes())
    finally:
        server.stop()


def test_a_server_that_cannot_start_says_where_to_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", shutil.which("false"))
    server = PrefectServer(tmp_path)
    try:
        with pytest.raises(FailedError, match=re.escape(str(tmp_path / "server.log"))):
            server.wait()
    finally:
        server.stop()


@pytest.mark.skipif(bool(os.system("unshare -rn true")), reason="may make no network namespace")
def test_a_machine_that_cannot_reach_itself_is_told_how(tmp_path: Path) -> None:
    code = f"from pathlib import Path; from {PrefectServer.__module__} import PrefectServer as Server; "
    code += f"Server(Path({str(tmp_path)!r})).wait()"
    done = subprocess.run(["unshare", "-rn", sys.executable, "-c", code], capture_output=True, text=True)
    assert "this machine's own network is unreachable; enable the loopback interface" in done.stderr


def test_a_server_without_tls_is_asked_without_reading_certificates(
    prefect_api: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which would take a fifth of a short run's time."""

    def read(*_: object, **_named: object) -> None:
        raise AssertionError("certificates were read")

    monkeypatch.setattr(ssl.SSLContext, "load_verify_locations", read)
    check_server(prefect_api)


def test_a_mistake_leaves_no_server_behind(toy: Make) -> None:
    broken = toy("stages: [", {})
    ended = run_in(broken.path, RUN)
    assert ended.returncode == 2
    assert "dvc.yaml" in ended.stdout
    assert "Traceback" not in ended.stdout + ended.stderr
    assert servers_of(broken.path) == []


@pytest.mark.drill
def test_what_several_runs_report_at_once_is_stored(tmp_path: Path) -> None:
    """No request is refused, and no two wait for each other within SQLite."""
    with forking():
        server = PrefectServer(tmp_path / "prefect")
    with server:
        server.wait()
        ended = subprocess.run(
            [*python(), "-c", REPORTING],
            env=os.environ | server.environment | {"PYTHONPATH": PYTHONPATH, "PREFECT_CLIENT_MAX_RETRIES": "0"},
            capture_output=True,
            text=True,
            check=False,
            timeout=LIMIT_S,
        )
    assert ended.returncode == 0, ended.stderr
    assert "locked" not in (tmp_path / "prefect/server.log").read_text()
