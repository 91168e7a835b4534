"""Commands of a project's own packages, whose modules are imported once for all commands of a module."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from dvcfleet.worker.fork_client import ForkServer, run_command
from dvcfleet.worker.module_server import MOST
from dvcfleet.worker.output import Lines
from dvcfleet.worker.termination import GRACE_S, LEAVE, STOP
from tests.dvcfleet.test_jobs import LEFT_OPEN
from tests.support import wait_until

# What `own.COMMAND` says first is the process that imported `own.used`: its own, or that of a module server.
USED = "import os\nIMPORTED_BY = os.getpid()\nWORD = 'first'\n"
COMMAND = """
import os
import sys
from own import used
from own.used import IMPORTED_BY

print("own" if IMPORTED_BY == os.getpid() else IMPORTED_BY)
print(used.WORD, __name__, sys.argv[1:], os.environ["DVC_STAGE"], os.getcwd())
"""


class Commands:
    """A package `own` in a repository, a warm fork server, and the commands that it ran."""

    def __init__(self, root: Path) -> None:
        self.root, self._number = root, 0
        (root / "own").mkdir(parents=True)
        (root / "own/__init__.py").touch()
        self.write("used", USED)
        self.write("command", COMMAND)
        self.server = ForkServer(root, ["xmlrpc.client"])

    def write(self, name: str, text: str) -> None:
        """Write a module of the package."""
        (self.root / f"own/{name}.py").write_text(text)

    def request(self, module: str = "own.command", *arguments: str, **variables: str) -> dict[str, Any]:
        """Return a request for a stage's command."""
        self._number += 1
        return {
            "argv": (),
            "module": module,
            "imports_once": True,
            "arguments": arguments,
            "folder": str(self.root),
            "environment": {"DVC_STAGE": f"stage{self._number}", **variables},
        }

    def run(self, module: str = "own.command", *arguments: str, **variables: str) -> tuple[int, list[str]]:
        """Run a command; return its exit code and its lines."""
        lines: list[str] = []
        read = Lines(lambda text: lines.extend(text.splitlines()))
        answer = run_command(self.server.address, self.request(module, *arguments, **variables), read)
        read.last()
        assert answer
        return answer["exit_code"], lines

    def importer(self, module: str = "own.command", **variables: str) -> str:
        """Run a command; return what it says first: "own", or the process that imported what it needs."""
        return self.run(module, **variables)[1][0]

    def warmed_up(self, module: str = "own.command", **variables: str) -> int:
        """Run commands until a module server has imported what they need; return its process id."""
        found: list[int] = []

        def is_imported() -> bool:
            importer = self.importer(module, **variables)
            found.extend([int(importer)] if importer != "own" else [])
            return bool(found)

        wait_until(is_imported)
        return found[0]

    def fork_server(self) -> psutil.Process:
        """Return the fork server's process, a child of the one that was started."""
        return psutil.Process(self.server._process.pid).children()[0]

    def module_servers(self) -> list[psutil.Process]:
        """Return the fork server's children, which are no commands if none is running, and nothing left behind."""
        found = []
        for each in self.fork_server().children():
            with suppress(psutil.NoSuchProcess):
                found += [each] * (each.status() != psutil.STATUS_ZOMBIE and each.name() != "sleep")
        return found


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Commands]:
    commands = Commands(tmp_path / "tree")
    yield commands
    commands.server.stop()


def test_commands_of_one_module_import_what_it_needs_once(own: Commands) -> None:
    assert own.importer() == own.importer() == "own"
    server = own.warmed_up()
    assert psutil.Process(server).ppid() == own.fork_server().pid
    for number in range(3):
        _, lines = own.run("own.command", "a", str(number))
        stage = f"stage{own._number}"
        assert lines == [str(server), f"first __main__ ['a', '{number}'] {stage} {own.root}"]


def test_an_edited_module_runs_as_it_is_now(own: Commands) -> None:
    for word in ("second", "third"):
        own.warmed_up()
        own.write("used", USED.replace("first", word))
        assert own.run()[1][-1].split()[0] == word
    own.warmed_up()
    own.write("command", COMMAND.replace("used.WORD", "'edited'"))
    assert own.run()[1][-1].split()[0] == "edited"


def test_a_new_module_of_a_package_is_seen(own: Commands) -> None:
    listing = "'+'.join(each.name for each in pkgutil.iter_modules([os.path.dirname(__file__)]))"
    own.write("used", f"{USED}import pkgutil\nWORD = {listing}\n")
    own.warmed_up()
    own.write("another", "")
    assert own.run()[1][-1].split()[0] == "another+command+used"


def test_a_new_module_in_the_folder_goes_before_a_library_of_its_name(own: Commands) -> None:
    own.write("used", USED + "from xmlrpc.client import WORD\n")
    (own.root / "xmlrpc").mkdir()
    (own.root / "xmlrpc/client.py").write_text("WORD = 'mine'")
    assert own.run()[0] == 1  # a folder without __init__.py is no package if a library is one
    (own.root / "xmlrpc/__init__.py").touch()
    assert own.run()[1][-1].split()[0] == "mine"


def test_what_a_command_imports_later_is_imported_once_too(own: Commands) -> None:
    own.write("later", "from own.used import IMPORTED_BY")
    own.write("lazy", "def main():\n    from own.later import IMPORTED_BY\n    import os\n"
              "    print('own' if IMPORTED_BY == os.getpid() else IMPORTED_BY)\nmain()\n")  # fmt: skip
    server = own.warmed_up("own.lazy")
    assert own.importer("own.lazy") == str(server)
    own.write("later", "IMPORTED_BY = 'edited'")
    assert own.importer("own.lazy") == "edited"


def test_a_module_server_executes_no_statement_of_the_module_itself(own: Commands) -> None:
    own.write("acts", f"{COMMAND}open('acted', 'a').write('x')\n")
    own.warmed_up("own.acts")
    runs = own._number
    own.run("own.acts")
    assert (own.root / "acted").read_text() == "x" * (runs + 1)


def test_a_package_that_runs_as_one_is_imported_once(own: Commands) -> None:
    own.write("__main__", COMMAND)
    server = own.warmed_up("own")
    assert own.run("own", "a")[1] == [str(server), f"first __main__ ['a'] stage{own._number} {own.root}"]


@pytest.mark.parametrize(
    "text",
    [
        "import threading, time\nthreading.Thread(target=time.sleep, args=(600,), daemon=True).start()",
        "import subprocess\nprocess = subprocess.Popen(['sleep', '60'])",
        "out = open(__file__)",
        "import signal\nsignal.signal(signal.SIGUSR1, signal.SIG_IGN)",
        "import random\nrandom.seed(0)",
        "os.makedirs('sub', exist_ok=True); os.chdir('sub')",
        "import importlib; importlib.import_module('own.command_of_it')",
        "print()",
    ],
    ids=["thread", "child", "open file", "signal", "random numbers", "folder", "circle", "output"],
)
def test_a_module_whose_import_leaves_more_than_modules_is_imported_by_each_command(own: Commands, text: str) -> None:
    own.write("leaves", USED + text)
    own.write(
        "command_of_it",
        COMMAND.replace("own.used", "own.leaves").replace("own import used", "own import leaves as used"),
    )
    for _ in range(4):
        code, lines = own.run("own.command_of_it")
        assert (code, next(filter(None, lines))) == (0, "own"), lines
        wait_until(lambda: not own.module_servers())


@pytest.mark.parametrize(
    "text", ["raise RuntimeError('no driver')", "1 +", "import no_such_module", "raise SystemExit(3)"]
)
def test_a_failing_import_says_and_ends_as_without_a_module_server(own: Commands, text: str) -> None:
    server = own.warmed_up()
    own.write("used", f"{USED}{text}\n")
    command = [sys.executable, "-m", "own.command"]
    cold = subprocess.run(command, cwd=own.root, capture_output=True, text=True, check=False)
    for _ in range(3):
        code, lines = own.run()
        assert (code, lines[-1:]) == (cold.returncode, cold.stderr.splitlines()[-1:])
    assert not psutil.pid_exists(server)
    own.write("used", USED)
    assert own.run()[0] == 0


def test_commands_with_other_variables_are_apart(own: Commands) -> None:
    own.write("used", USED + "WORD = os.environ.get('GIVEN', 'none')\nos.environ['SET'] = f'by {WORD}'\n")
    own.write("command", COMMAND + "print(os.environ.get('GIVEN'), os.environ['SET'])")
    servers = {given: own.warmed_up(**given_as(given)) for given in ("", "a", "b")}
    assert len(set(servers.values())) == 3
    for given, server in servers.items():
        word = given or "none"
        lines = own.run(**given_as(given))[1]
        assert (lines[0], lines[1].split()[0], lines[2]) == (str(server), word, f"{given or None} by {word}")


def given_as(value: str) -> dict[str, str]:
    return {"GIVEN": value} if value else {}


def test_only_some_module_servers_are_kept(own: Commands) -> None:
    for number in range(MOST + 3):
        own.warmed_up(GIVEN=str(number))
    wait_until(lambda: len(own.module_servers()) == MOST)


LASTS = COMMAND + "import time\nsys.stdout.flush()\nopen(sys.argv[1], 'w').write(str(os.getpid()))\n" \
    "while not os.path.exists(sys.argv[2]): time.sleep(0.05)\nprint('ended')\n"  # fmt: skip


def lasting(own: Commands, name: str) -> tuple["threading.Thread", list[tuple[int, list[str]]], int]:
    """Start a command that ends when a file `go` is there; return its thread, its result to be, and its process id."""
    found: list[tuple[int, list[str]]] = []

    def run() -> None:
        with suppress(AssertionError):  # the fork server was stopped
            found.append(own.run("own.lasts", name, "go"))

    thread = threading.Thread(target=run)
    thread.start()
    wait_until(lambda: (own.root / name).exists() and (own.root / name).read_text() != "")
    return thread, found, int((own.root / name).read_text())


@pytest.fixture
def lasts(own: Commands) -> int:
    """A module server for `own.lasts`; its process id."""
    own.write("lasts", LASTS)
    (own.root / "go").touch()
    found: list[str] = []

    def is_imported() -> bool:
        found[:] = own.run("own.lasts", "first", "go")[1]
        return found[0] != "own"

    wait_until(is_imported)
    (own.root / "go").unlink()
    return int(found[0])


def test_a_killed_command_is_the_only_one_that_is_lost(own: Commands, lasts: int) -> None:
    one, ones, killed = lasting(own, "one")
    other, others, pid = lasting(own, "other")
    assert psutil.Process(pid).ppid() == own.fork_server().pid
    os.kill(killed, signal.SIGKILL)
    one.join()
    (own.root / "go").touch()
    other.join()
    assert ones[0][0] == -signal.SIGKILL
    assert others[0][0] == 0
    assert [ones[0][1][0], others[0][1][0], own.run("own.lasts", "next", "go")[1][0]] == [str(lasts)] * 3


def test_a_killed_module_server_takes_no_command_with_it(own: Commands, lasts: int) -> None:
    thread, found, _ = lasting(own, "one")
    os.kill(lasts, signal.SIGKILL)
    (own.root / "go").touch()
    assert own.run("own.lasts", "next", "go")[1][0] == "own"
    thread.join()
    assert (found[0][0], found[0][1][-1]) == (0, "ended")
    wait_until(lambda: own.run("own.lasts", "next", "go")[1][0] not in ("own", str(lasts)))


@pytest.mark.parametrize("how", [STOP, LEAVE])
def test_nothing_is_left_after_a_run(own: Commands, lasts: int, how: bytes) -> None:
    thread = lasting(own, "one")[0] if how == STOP else None
    family = psutil.Process(own.server._process.pid).children(recursive=True)
    assert lasts in [each.pid for each in family]
    started = time.monotonic()
    own.server.stop(how)
    assert not [each for each in family if each.is_running() and each.status() != psutil.STATUS_ZOMBIE]
    assert time.monotonic() - started < GRACE_S  # no module server is waited for
    if thread:
        thread.join()


def test_nothing_survives_the_death_of_the_fork_server(own: Commands, lasts: int) -> None:
    thread, _, pid = lasting(own, "one")
    own.fork_server().kill()
    thread.join()
    wait_until(lambda: not psutil.pid_exists(pid) and not psutil.pid_exists(lasts))


def test_a_command_that_takes_too_long_is_ended_with_its_children(own: Commands) -> None:
    own.write("command", COMMAND + "import subprocess, time\n"
              "child = subprocess.Popen(['sleep', '600'])\nprint(child.pid, flush=True)\n"
              "time.sleep(600 if 'long' in sys.argv else 0)\nchild.kill()\n")  # fmt: skip
    own.warmed_up()
    lines: list[str] = []
    read = Lines(lambda text: lines.extend(text.splitlines()))
    answer = run_command(own.server.address, own.request("own.command", "long"), read, lambda: len(lines) >= 3)
    assert answer
    assert (answer["ended"], answer["exit_code"]) == (True, -signal.SIGTERM)
    assert lines[0] != "own"
    wait_until(lambda: not psutil.pid_exists(int(lines[2])))  # a killed one lasts until it is waited for


def test_peak_memory_is_the_commands(own: Commands) -> None:
    own.write("command", COMMAND + "len(bytearray(200 * 2**20 if 'large' in sys.argv else 0))\n")
    own.warmed_up()
    peaks = [
        run_command(own.server.address, own.request("own.command", size), Lines(print)) for size in ("large", "small")
    ]
    assert peaks[0]["peak_rss_bytes"] - peaks[1]["peak_rss_bytes"] > 150 * 2**20


@pytest.mark.parametrize("kind", LEFT_OPEN)
def test_what_a_module_leaves_to_the_end_is_done_as_without_a_module_server(own: Commands, kind: str) -> None:
    begins = "import os, sys\nfrom own.used import IMPORTED_BY\npath = sys.argv[1]\ndef refers_to_all(): pass\n"
    notes = "open(path + '.by', 'w').write(str(IMPORTED_BY == os.getpid()))\n"
    own.write("leaves", f"{begins}{notes}{LEFT_OPEN[kind]}\n")
    out = own.root / "out"
    found: list[tuple[int, bytes | None, list[str]]] = []

    def is_imported() -> bool:
        out.unlink(missing_ok=True)
        code, lines = own.run("own.leaves", str(out))
        found.append((code, out.read_bytes() if out.exists() else None, lines))
        return (own.root / "out.by").read_text() == "False"

    if kind == "killed":  # it notes nothing
        assert not any(is_imported() for _ in range(3))
    else:
        wait_until(is_imported)
    assert found[-1] == found[0]
