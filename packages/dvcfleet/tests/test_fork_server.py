"""The fork server itself, by real sockets: what clients may do to it, how it ends, and what its children hold."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from dvcfleet.worker.fork_client import ForkServer, ForkServers, run_command
from dvcfleet.worker.fork_server import is_of
from dvcfleet.worker.output import Lines
from tests import PYTHONPATH
from tests.dvcfleet.cluster import ROOT
from tests.support import LIMIT_S, wait_until

# Ignores SIGTERM, as a program does that has much to put away.
DEAF = "import signal, time; signal.signal(15, signal.SIG_IGN); print('deaf', flush=True); time.sleep(600)"
# On SIGTERM, waits until another of the two has got it too.
MEETS = """
import os, signal, sys, time
own, other = sys.argv[1:]
def meet(*_):
    open(f"told{own}", "w").close()
    while not os.path.exists(f"told{other}"): time.sleep(0.05)
    open(f"met{own}", "w").close()
    os._exit(0)
signal.signal(15, meet)
print("ready", flush=True)
time.sleep(600)
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkServer]:
    server = ForkServer(tmp_path_factory.mktemp("root"))
    yield server
    server.stop()


def request(folder: Path, line: str) -> dict[str, object]:
    argv = ("/bin/sh", "-c", line)
    return {
        "argv": argv,
        "module": None,
        "imports_once": False,
        "arguments": (),
        "folder": str(folder),
        "environment": {},
    }


def set_grace(monkeypatch: pytest.MonkeyPatch, folder: Path, seconds: float) -> None:
    """Have the servers that are started wait so long between SIGTERM and SIGKILL."""
    (folder / "site").mkdir()
    code = f"from dvcfleet.worker import termination\ntermination.GRACE_S = {seconds}\n"
    (folder / "site/sitecustomize.py").write_text(code)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(folder / "site"), PYTHONPATH]))


def works(server: ForkServer, folder: Path) -> bool:
    answer = run_command(server.address, request(folder, "exit 3"), Lines(print), None)
    return answer is not None and answer["exit_code"] == 3


def connected(server: ForkServer) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(server.address)
    return connection


def asked(server: ForkServer, folder: Path, line: str) -> socket.socket:
    """Ask for a command, by a connection that is still open then."""
    connection = connected(server)
    with open(os.devnull, "w") as nothing:
        socket.send_fds(connection, [json.dumps(request(folder, line)).encode() + b"\n"], [nothing.fileno()])
    return connection


def cpu_seconds(server: ForkServer) -> float:
    times = psutil.Process(server._process.pid).cpu_times()
    return float(times.user + times.system)


def open_files(server: ForkServer) -> int:
    return psutil.Process(server._process.pid).num_fds()


@pytest.mark.parametrize(
    "message",
    [b"", b"{", b"\n", b"[]\n", b"{}\n", b'{"argv": [', b"\xff\n", b"[" * 100_000 + b"\n", b"x" * (2 << 20)],
    ids=["nothing", "part", "empty line", "list", "no fields", "half", "no text", "deep", "endless"],
)
@pytest.mark.parametrize("with_descriptor", [True, False])
def test_a_client_that_sends_nonsense_ends_its_own_connection_only(
    server: ForkServer, tmp_path: Path, message: bytes, with_descriptor: bool
) -> None:
    assert works(server, tmp_path)
    before = open_files(server)
    for _ in range(3):
        with connected(server) as connection, open(os.devnull) as file:
            connection.settimeout(LIMIT_S)
            # It may be refused before all of it was sent.
            with suppress(BrokenPipeError, ConnectionResetError):
                if message and with_descriptor:
                    socket.send_fds(connection, [message[:1]], [file.fileno()])
                    connection.sendall(message[1:])
                else:
                    connection.sendall(message)
                connection.shutdown(socket.SHUT_WR)
                assert connection.recv(1) == b""
    assert works(server, tmp_path)
    wait_until(lambda: open_files(server) <= before)


def test_clients_that_are_killed_leave_a_server_that_idles_and_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed before a request, within it, and while its command runs."""
    set_grace(monkeypatch, tmp_path, 600)
    server = ForkServer(tmp_path)
    client = f"""
import os, signal, socket, sys, time
sys.path.insert(0, {str(ROOT)!r})
from tests.dvcfleet.test_fork_server import *
server = type("Server", (), {{"address": {server.address!r}}})
idle = connected(server)
partial = connected(server)
socket.send_fds(partial, [b'{{"argv": ['], [1])
running = asked(server, Path({str(tmp_path)!r}), "echo $$ > pid; sleep 600")
while not os.path.exists("pid") or not open("pid").read(): time.sleep(0.05)
os.kill(os.getpid(), signal.SIGKILL)
"""
    killed = subprocess.run([sys.executable, "-c", client], cwd=tmp_path, timeout=LIMIT_S, check=False)
    assert killed.returncode == -signal.SIGKILL
    command = int((tmp_path / "pid").read_text())
    wait_until(lambda: not psutil.pid_exists(command))
    before = cpu_seconds(server)
    time.sleep(1)
    assert cpu_seconds(server) - before < 0.5
    assert works(server, tmp_path)
    started = time.monotonic()
    server.stop()
    assert time.monotonic() - started < 300  # nothing is left that it would wait for


def test_a_hang_up_in_the_moment_the_command_ends_leaves_the_others_running(server: ForkServer, tmp_path: Path) -> None:
    lasting = asked(server, tmp_path, "echo $$ > lasting; sleep 600")
    wait_until((tmp_path / "lasting").exists)
    pid = psutil.Process(server._process.pid)
    for _ in range(20):
        with asked(server, tmp_path, "touch begun; read -r line < go"):
            os.path.exists(tmp_path / "go") or os.mkfifo(tmp_path / "go")
            wait_until((tmp_path / "begun").exists)
            # While it is stopped both happen: it finds them in one turn.
            pid.suspend()
            with open(tmp_path / "go", "w") as go:
                go.write("\n")
        time.sleep(0.02)
        pid.resume()
        (tmp_path / "begun").unlink()
        assert works(server, tmp_path)
    assert psutil.pid_exists(int((tmp_path / "lasting").read_text()))
    lasting.close()


def test_many_clients_at_once_are_all_served(server: ForkServer, tmp_path: Path) -> None:
    connections = [asked(server, tmp_path, f"exit {number % 7}") for number in range(100)]
    codes = [json.loads(connection.makefile().readline())["exit_code"] for connection in connections]
    assert codes == [number % 7 for number in range(100)]


def test_a_command_gets_sigterm_and_some_seconds_before_it_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_grace(monkeypatch, tmp_path, 600)
    server = ForkServer(tmp_path)
    tidy = "trap 'sleep 0.1; echo put away > tidied; exit 0' TERM; touch ready; while true; do sleep 60 & wait; done"
    connection = asked(server, tmp_path, tidy)
    connection.settimeout(LIMIT_S)  # it ends when the command has ended, not when the seconds are over
    wait_until((tmp_path / "ready").exists)
    connection.shutdown(socket.SHUT_WR)
    assert json.loads(connection.makefile().readline())["exit_code"] == 0
    assert (tmp_path / "tidied").exists()
    server.stop()


def test_what_ignores_sigterm_is_killed_with_all_below_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first process ends at once: its child is left to nobody, and yet waited for, and killed in the end."""
    set_grace(monkeypatch, tmp_path, 2.0)
    server = ForkServer(tmp_path)
    (tmp_path / "deaf.py").write_text(DEAF)
    connection = asked(server, tmp_path, f"{sys.executable} deaf.py > out & echo $! > pid; wait")
    connection.settimeout(LIMIT_S)
    wait_until(lambda: (tmp_path / "out").exists() and "deaf" in (tmp_path / "out").read_text())
    pid = int((tmp_path / "pid").read_text())
    started = time.monotonic()
    connection.shutdown(socket.SHUT_WR)
    assert json.loads(connection.makefile().readline())["exit_code"] == -signal.SIGTERM
    assert time.monotonic() - started >= 2.0
    assert not psutil.pid_exists(pid)
    server.stop()


def test_both_servers_are_told_to_stop_before_one_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that stopping them takes one grace, and not two."""
    set_grace(monkeypatch, tmp_path, 100)
    (tmp_path / "meets.py").write_text(MEETS)
    servers = ForkServers(tmp_path, ["xmlrpc.client"])
    connections = []
    for number, address in enumerate(servers.addresses()):
        with socket.socket(socket.AF_UNIX) as connection, open(tmp_path / f"out{number}", "w") as out:
            connection.connect(address)
            line = f"echo $$ > pid{number}; exec {sys.executable} meets.py {number} {1 - number}"
            socket.send_fds(connection, [json.dumps(request(tmp_path, line)).encode() + b"\n"], [out.fileno()])
            connections.append(connection.dup())
    wait_until(lambda: all((tmp_path / f"out{number}").read_text() for number in range(2)))
    servers.stop()
    for number, connection in enumerate(connections):
        assert (tmp_path / f"met{number}").exists()
        assert connection.recv(1) == b""
        connection.close()
        assert not psutil.pid_exists(int((tmp_path / f"pid{number}").read_text()))


def test_nothing_survives_the_death_of_the_process_that_started_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_grace(monkeypatch, tmp_path, 600)  # nor has it that time
    (tmp_path / "deaf.py").write_text(DEAF)
    owner = f"""
import sys, time
sys.path.insert(0, {str(ROOT)!r})
from tests.dvcfleet.test_fork_server import *
server = ForkServer(Path.cwd())
connection = asked(server, Path.cwd(), "{sys.executable} deaf.py > out & echo $! > pid; wait")
while "deaf" not in (open("out").read() if os.path.exists("out") else ""): time.sleep(0.05)
print(server._process.pid, server.address, flush=True)
time.sleep(600)
"""
    with subprocess.Popen([sys.executable, "-c", owner], cwd=tmp_path, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        pid, address = process.stdout.readline().split()
        process.kill()
    pids = [int(pid), int((tmp_path / "pid").read_text())]
    wait_until(lambda: not any(map(psutil.pid_exists, pids)))
    assert not os.path.exists(address)


# The tree of a repository whose own packages have the names of Merganser's.
TREE = {
    "tasks/__init__.py": "",
    "tasks/say.py": "import flows.words, selectors; print(flows.words.WORD, selectors.WORD)",
    "flows/__init__.py": "",
    "flows/words.py": "WORD = 'theirs'",
    "tasks/list.py": "import sys; [print(name, getattr(sys.modules[name], '__file__', None)) for name in sys.modules]",
    "other/__init__.py": "print('the repository was imported')",
    "top.py": "import sys; print('top', sys.argv[1:])",
}


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("tree")
    for name, text in TREE.items():
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_text(text)
    return root


@pytest.fixture(scope="module")
def warm(tree: Path) -> Iterator[ForkServer]:
    """A server that is asked to import a module from outside, and some of the repository's own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", f"{PYTHONPATH}{os.pathsep}{tree}")
        server = ForkServer(tree, ["xmlrpc.client", "other", "flows.words", "top"])
    yield server
    server.stop()


def lines_of(server: ForkServer, folder: Path, module: str, *arguments: str) -> list[str]:
    lines: list[str] = []
    asking = request(folder, "") | {"module": module, "arguments": arguments}
    read = Lines(lambda text: lines.extend(text.splitlines()))
    answer = run_command(server.address, asking, read)
    read.last()
    assert answer
    assert answer["exit_code"] == 0, lines
    return lines


def test_a_warm_child_holds_no_module_of_the_repository_or_of_the_engine(tree: Path, warm: ForkServer) -> None:
    listed = dict(line.split(" ", 1) for line in lines_of(warm, tree, "tasks.list"))
    assert "xmlrpc.client" in listed
    inside = {name for name, file in listed.items() if file.startswith((str(tree), f"{ROOT}/")) and ".venv" not in file}
    assert inside <= {"__main__", "tasks", "tasks.list"}
    assert not [name for name in listed if name.partition(".")[0] in ("dvcfleet", "flows", "merganser", "other", "top")]


def test_a_repository_may_name_its_packages_as_it_likes(tree: Path, warm: ForkServer) -> None:
    # The server has imported a module of this name long ago.
    (tree / "selectors.py").write_text("WORD = 'shadowed'")
    assert lines_of(warm, tree, "tasks.say") == ["theirs shadowed"]
    assert lines_of(warm, tree, "top", "1") == ["top ['1']"]


def test_an_edited_module_is_imported_as_it_is_now(tree: Path, warm: ForkServer) -> None:
    for word in ("first", "and then another"):
        (tree / "tasks/edited.py").write_text(f"print({word!r})")
        (tree / "tasks/edits.py").write_text("import tasks.edited")
        assert lines_of(warm, tree, "tasks.edits") == [word]


def test_what_a_preloaded_module_finalizes_at_its_end_is_not_a_commands(tmp_path: Path) -> None:
    (tmp_path / "library").mkdir()
    finalizing = "import weakref\nclass Kept: pass\nkept = Kept()\nweakref.finalize(kept, print, 'finalized')"
    folder = "import atexit, shutil, tempfile\nfolder = tempfile.mkdtemp()\natexit.register(shutil.rmtree, folder)"
    (tmp_path / "library/finalizing.py").write_text(f"{finalizing}\n{folder}")
    tree = tmp_path / "tree"
    tree.mkdir()
    says = "import finalizing, os, weakref; weakref.finalize(finalizing, print, os.path.isdir(finalizing.folder))"
    (tree / "says.py").write_text(says)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", f"{PYTHONPATH}{os.pathsep}{tmp_path / 'library'}")
        server = ForkServer(tree, ["finalizing"])
    try:
        assert [lines_of(server, tree, "says") for _ in range(2)] == [["True"]] * 2
    finally:
        server.stop()


def test_an_environment_within_the_repository_is_not_the_repositorys_code() -> None:
    root = Path(sys.prefix).parent
    assert not is_of(root, pytest.__file__)
    assert not is_of(root, os.__file__)
    assert is_of(root, str(root / "pytest.py"))
    assert not is_of(root, None)


def test_the_repositorys_modules_are_not_preloaded_even_if_the_project_names_them(tree: Path) -> None:
    """Nor if a library imports them, as one does that knows plug-ins."""
    (tree.parent / "library").mkdir()
    (tree.parent / "library/plugged.py").write_text("import flows.words")
    (tree.parent / "library/broken.py").write_text("raise RuntimeError('no driver')")
    code = (
        "import sys; from pathlib import Path; from dvcfleet.worker.fork_server import preload;"
        f"sys.path[:0] = [{str(tree)!r}, {str(tree.parent / 'library')!r}];"
        "names = ['other', 'top', 'tasks.say', 'no_such_module', 'broken', 'xmlrpc.client', 'plugged'];"
        f"preload(Path({str(tree)!r}), names);"
        "print(*[name for name in ('other', 'top', 'tasks', 'flows.words', 'xmlrpc.client', 'plugged')"
        " if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "xmlrpc.client plugged\n"
