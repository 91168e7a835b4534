import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from dvcfleet.messages import Command, Job, Outcome
from dvcfleet.planning.resources import Resources, thread_variables
from dvcfleet.project import Project
from dvcfleet.worker.child import system_exit_code
from dvcfleet.worker.fork_client import ForkServers
from dvcfleet.worker.jobs import run_job, warm_command
from dvcfleet.worker.output import log_path
from dvcfleet.worker.termination import LEAVE, STOP
from tests.support import wait_until

MODULE = """
import sys, os, pathlib
print("arguments", *sys.argv[1:])
print("name", __name__, "folder", os.getcwd(), "first", sys.path[0])
print("to stderr", file=sys.stderr)
kind = sys.argv[1]
if kind == "two":
    sys.exit(2)
if kind == "words":
    sys.exit("some words")
if kind == "raise":
    raise KeyError("x")
if kind == "memory":
    len(bytearray(200 * 2**20))
if kind == "mark":
    import builtins
    builtins.marked = getattr(builtins, "marked", 0) + 1
    print("marked", builtins.marked)
if kind == "late":
    import atexit
    atexit.register(print, "at the end")
"""


class OneThread(Project):
    """A project whose stages use one thread unless they ask for more, and this process's PATH."""

    def variables(self, run: str) -> dict[str, str]:
        return thread_variables(1) | {"PATH": os.environ["PATH"]}


PROJECT = OneThread()


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository's root with one module to run."""
    folder = tmp_path_factory.mktemp("repository")
    (folder / "tasks").mkdir()
    (folder / "tasks/__init__.py").touch()
    (folder / "tasks/say.py").write_text(MODULE)
    (folder / "pyproject.toml").write_text(f'[tool.dvcfleet]\nproject = "{__name__}:PROJECT"\n')
    return folder


@pytest.fixture(scope="module")
def addresses(root: Path) -> Iterator[tuple[str, str | None]]:
    servers = ForkServers(root, ["xmlrpc.client", "no_such_module"], PROJECT.variables(""))
    yield servers.addresses()
    servers.stop()


@pytest.fixture(autouse=True)
def own_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """`python` is this interpreter."""
    monkeypatch.setenv("PATH", path_with(Path(sys.executable).parent))


@pytest.fixture
def job(root: Path, addresses: tuple[str, str | None]) -> Job:
    return job_of(root, addresses)


def job_of(root: Path, addresses: tuple[str, str | None], threads: int = 1) -> Job:
    return Job("a", (), str(root), str(root), limits=thread_variables(threads), fork_servers=addresses)


def path_with(folder: Path) -> str:
    return f"{folder}{os.pathsep}{os.environ['PATH']}"


def say(root: Path, *arguments: str) -> Command:
    return python("tasks.say", root, *arguments)


def python(module: str, root: Path, *arguments: str) -> Command:
    line = " ".join(["python -m", module, *arguments])
    warm = warm_command(line, root)
    assert warm
    return Command(line, ("/bin/sh", "-c", line), *warm)


def run(job: Job, *commands: Command) -> tuple[Outcome, list[str]]:
    lines: list[str] = []
    outcome = run_job(replace(job, commands=commands), lambda text: lines.extend(text.splitlines()))
    return outcome, lines


def run_to_its_timeout(
    job: Job, *commands: Command, on_text: Callable[[str], object] = lambda text: None
) -> tuple[Outcome, float]:
    """Run commands that do not end, with a timeout; a longer one if a busy machine had not begun them."""
    for timeout_s in (1.0, 10.0, 100.0):
        outcome = run_job(replace(job, commands=commands, resources=Resources(timeout_s=timeout_s)), on_text)
        if outcome.tail:
            break
    return outcome, timeout_s


def shell(line: str) -> Command:
    return Command(line, ("/bin/sh", "-c", line))


@pytest.mark.parametrize(
    "line",
    [
        "python -m merganser.tasks.say a | cat",
        "python -m merganser.tasks.say $HOME",
        "python -m merganser.tasks.say *",
        "python -m merganser.tasks.say a\u00a0b",
        "python -m merganser.tasks.say 'a b'",
        "python -m merganser.tasks.say; true",
        "python -m merganser.tasks.none a",
        "python -m json.tool a",
        "python3 -m tasks.say a",
        "python tasks/say.py a",
        "X=1 python -m merganser.tasks.say",
        "python -m",
    ],
)
def test_only_plain_commands_on_the_repositorys_modules_run_warm(root: Path, line: str) -> None:
    assert warm_command(line, root) is None


def test_a_package_in_the_folder_where_a_stage_works_runs_warm_there(root: Path, job: Job) -> None:
    package = root / "examples/suite"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    assert warm_command("python -m suite plain", package.parent) is None  # which cannot be run
    (package / "__main__.py").write_text(f"{MODULE}\nprint('xmlrpc.client' in sys.modules)")
    assert warm_command("python -m suite plain", root) is None
    _, lines = run(replace(job, folder=str(package.parent)), python("suite", package.parent, "plain"))
    assert {"arguments plain", f"name __main__ folder {package.parent} first {package.parent}", "True"} <= set(lines)


@pytest.mark.parametrize("kind", ["plain", "two", "words", "raise", "late"])
def test_a_warm_command_ends_and_speaks_like_a_cold_one(root: Path, job: Job, kind: str) -> None:
    cold = subprocess.run(
        [sys.executable, "-u", "-m", "tasks.say", kind, "b=1"], cwd=root, capture_output=True, text=True, check=False
    )
    outcome, lines = run(job, say(root, kind, "b=1"))
    assert outcome.exit_code == cold.returncode
    told = [line for line in lines[1:] if not line.startswith(("  ", "Traceback"))]
    expected = [line for line in (cold.stdout + cold.stderr).splitlines() if not line.startswith(("  ", "Traceback"))]
    assert sorted(told) == sorted(expected)


def test_a_warm_command_leaves_nothing_to_the_next(root: Path, job: Job) -> None:
    for _ in range(2):
        outcome, lines = run(job, say(root, "mark"))
        assert (outcome.exit_code, lines[-1]) == (0, "marked 1")


# How a module may leave what it writes to the interpreter's end; each ends with the same bytes, warm or cold.
LEFT_OPEN = {
    "global": "out = open(path, 'w'); out.write('whole')",
    "object": "class A: pass\na = A(); a.me = a; a.out = open(path, 'w'); a.out.write('whole')",
    "generator": "def g():\n  with open(path, 'w') as out: out.write('whole'); yield\nwaits = g(); next(waits)",
    "gzip": "import gzip\nout = gzip.GzipFile(path, 'wb', mtime=0); out.write(b'whole')",
    "zip": "import zipfile\nout = zipfile.ZipFile(path, 'w'); out.writestr(zipfile.ZipInfo('a'), 'whole')",
    "own finalizer": "class A:\n    def __init__(self): self.out = open(path, 'w')\n"
    "    def __del__(self): self.out.write('at the end')\na = A()",
    "a library's": "import xmlrpc.client, gzip\nxmlrpc.client.kept = [gzip.GzipFile(path, 'wb', mtime=0)]\n"
    "xmlrpc.client.kept[0].write(b'whole')",
    "builtins": "import builtins; builtins.out = open(path, 'w'); builtins.out.write('whole')",
    "standard output": "sys.stdout = open(path, 'w'); print('whole')",
    "exit": "out = open(path, 'w'); out.write('whole')\nsys.exit()",
    "exit code": "out = open(path, 'w'); out.write('whole')\nsys.exit(3)",
    "exit code -1": "sys.exit(-1)",
    "error": "def f():\n    out = open(path, 'w'); out.write('whole'); me = f; raise KeyError(out)\nf()",
    "hook": "sys.excepthook = lambda *error: open(path, 'w').write(error[0].__name__)\nraise KeyError",
    "interrupt": "out = open(path, 'w'); out.write('whole')\nraise KeyboardInterrupt",
    "at exit": "import atexit\nout = open(path, 'w')\natexit.register(out.write, 'whole')",
    "at exit, main": "import atexit\nout = open(path, 'w')\n"
    "atexit.register(lambda: out.write(repr(sys.modules['__main__'].path == path)))",
    "thread": "import threading, time\nout = open(path, 'w')\n"
    "threading.Thread(target=lambda: (time.sleep(0.2), out.write('whole'), sys.exit(5))).start()",
    "weak reference": "import weakref\nclass A: pass\na = A()\nweakref.finalize(a, open(path, 'w').write, 'whole')",
    "logging": "import logging\nlogging.basicConfig(filename=path, format='%(message)s'); logging.warning('whole')",
    "memory handler": "import logging.handlers\nfile = logging.FileHandler(path)\n"
    "logging.getLogger().addHandler(logging.handlers.MemoryHandler(9, target=file)); logging.warning('whole')",
    "process": "import multiprocessing\nif __name__ == '__main__':\n"
    "    multiprocessing.get_context('fork').Process(target=lambda: open(path, 'w').write('whole')).start()",
    "killed": "out = open(path, 'w'); out.write('lost'); os._exit(4)",
    "no module": "class Lib: __slots__ = ()\nsys.modules['lib'] = Lib(); out = open(path, 'w'); out.write('whole')",
    "C": "import ctypes\nctypes.CDLL(None).puts(b'from C')",
    "closed output": "sys.stdout.close()",
}


@pytest.mark.parametrize("kind", LEFT_OPEN)
def test_what_a_module_leaves_to_the_end_is_done_warm_as_cold(root: Path, job: Job, kind: str, tmp_path: Path) -> None:
    name = f"leave_{list(LEFT_OPEN).index(kind)}"
    (root / f"tasks/{name}.py").write_text(
        f"import os, sys\npath = sys.argv[1]\ndef refers_to_all(): pass\n{LEFT_OPEN[kind]}\n"
    )
    command = python(f"tasks.{name}", root, str(tmp_path / "out"))
    found = []
    for module in (None, command.module):
        (tmp_path / "out").unlink(missing_ok=True)
        outcome, lines = run(job, replace(command, module=module))
        written = (tmp_path / "out").read_bytes() if (tmp_path / "out").exists() else None
        found.append((outcome.exit_code, written, lines))
    assert found[1] == found[0]


def test_preloaded_modules_are_imported_already(root: Path, job: Job) -> None:
    (root / "tasks/look.py").write_text("import sys; print('xmlrpc.client' in sys.modules)")
    assert run(job, python("tasks.look", root))[1][-1] == "True"


@pytest.mark.parametrize("threads", [1, 2])
def test_a_commands_libraries_have_as_many_threads_as_its_stage_asks_for(
    root: Path, monkeypatch: pytest.MonkeyPatch, threads: int
) -> None:
    for name in thread_variables(1):
        monkeypatch.delenv(name, raising=False)
    (root / "tasks/threads.py").write_text(
        "import sys; print('scipy.linalg' in sys.modules); import scipy.linalg, threadpoolctl\n"
        "print(*{pool['num_threads'] for pool in threadpoolctl.threadpool_info()})"
    )
    servers = ForkServers(root, ["scipy.linalg"], PROJECT.variables(""))
    try:
        lines = run(job_of(root, servers.addresses(), threads), python("tasks.threads", root))[1]
    finally:
        servers.stop()
    # Warm, the library has been loaded with one thread.
    assert lines[-2:] == [str(threads == 1), str(min(threads, os.cpu_count() or 1))]


def test_peak_memory_is_that_of_the_command(root: Path, job: Job) -> None:
    small, _ = run(job, say(root, "plain"))
    large, _ = run(job, say(root, "memory"))
    assert large.peak_rss_bytes - small.peak_rss_bytes > 150 * 2**20
    assert 0 < run(job, shell("true"))[0].peak_rss_bytes < large.peak_rss_bytes


def test_what_commands_used_is_summed_with_that_of_the_processes_they_waited_for(job: Job, tmp_path: Path) -> None:
    busy = f"{sys.executable} -c 'import time\nwhile time.process_time() < 0.3: pass'"
    written = f"dd if=/dev/zero of={tmp_path}/x bs=1M count=4 conv=fsync 2>{os.devnull}"
    commands = (shell(f"sleep 0.3; ({busy})"), shell(busy), shell(written))
    outcome = run(replace(job, gpus=("0", "1")), *commands)[0]
    assert 0.6 <= outcome.usage.cpu_s < outcome.seconds * (os.cpu_count() or 1)
    assert outcome.usage.gpu_s == 2 * outcome.seconds
    assert outcome.usage.written_bytes >= 4 << 20 or on_memory(tmp_path)
    assert run(job, shell("sleep 0.2"))[0].usage.cpu_s < 0.1


def on_memory(path: Path) -> bool:
    """Tell whether a path's file system has no disk, whose bytes the kernel does not count."""
    kind = subprocess.run(["stat", "-f", "-c", "%T", path], capture_output=True, text=True, check=True).stdout
    return kind.strip() in ("tmpfs", "ramfs", "overlayfs")


def test_a_shell_command_gets_its_environment(job: Job) -> None:
    _, lines = run(job, shell("echo $DVC_STAGE; pwd"))
    assert lines[1:] == ["a", job.folder]


def test_python_is_what_the_path_says(root: Path, job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Warm or cold: also where the other interpreter is the same file, in another environment."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "other"], check=True)
    (root / "tasks/prefix.py").write_text("import sys; print(sys.prefix, 'dvcfleet' in sys.modules)")
    command = python("tasks.prefix", root)
    assert run(job, command)[1][-1] == f"{sys.prefix} False"
    monkeypatch.setenv("PATH", path_with(tmp_path / "other/bin"))
    for module in (command.module, None):
        assert run(job, replace(command, module=module))[1][-1] == f"{tmp_path}/other False"


def test_a_command_gets_the_signals_as_a_shell_gives_them(job: Job) -> None:
    assert run(job, shell("yes | head -n 1"))[1][1:] == ["y"]
    ignored = next(line for line in run(job, shell("cat /proc/self/status"))[1] if line.startswith("SigIgn"))
    nohup = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN  # these tests were started so, and their commands too
    assert int(ignored.split()[1], 16) & 0x7FFFFFFF == nohup  # signals 1 to 31; the C library keeps the next two


def test_commands_run_one_after_another_up_to_the_first_that_fails(job: Job) -> None:
    outcome, lines = run(job, shell("echo 1"), shell("echo 2; exit 7"), shell("echo 3"))
    assert outcome.exit_code == 7
    assert lines == ["> echo 1", "1", "> echo 2; exit 7", "2"]
    assert outcome.tail == ("1", "2")


def test_a_command_killed_by_a_signal_says_so(job: Job) -> None:
    assert run(job, shell("kill -9 $$"))[0].exit_code == -9


def test_a_progress_bar_counts_as_what_it_showed_last(job: Job) -> None:
    assert run(job, shell(r"printf 'a 1%%\ra 100%%\nb'"))[1][1:] == ["a 100%", "b"]


def test_a_child_left_behind_is_not_waited_for(job: Job) -> None:
    outcome, lines = run(job, shell("sleep 600 & echo gone"))
    assert (outcome.exit_code, lines[1:]) == (0, ["gone"])
    assert outcome.seconds < 300


@pytest.mark.parametrize(
    "way", ["({}) &", "nohup sh -c '{}' > /dev/null 2>&1 &", "setsid sh -c '{}' &", "(({}) &); exit 3"]
)
def test_what_a_stage_left_behind_lives_on_after_the_run_unless_that_is_stopped(root: Path, way: str) -> None:
    """It may go on printing, too: its words are added to the log."""
    lives = way.format("while [ -e wait ]; do sleep 0.1; echo still here; done; echo 1 > alive")
    for how in (LEAVE, STOP):
        (root / "alive").unlink(missing_ok=True)
        (root / "wait").touch()
        servers = ForkServers(root)
        job = job_of(root, servers.addresses())
        assert run(job, shell(lives))[0].exit_code == (3 if "exit" in way else 0)
        servers.stop(how)
        (root / "wait").unlink()
        if how == LEAVE:
            wait_until((root / "alive").exists)
    time.sleep(0.5)
    assert not (root / "alive").exists()
    if "nohup" not in way:
        wait_until(lambda: "still here" in log_path(root, "a").read_text())


def test_a_command_that_never_stops_printing_is_ended_at_its_timeout(job: Job) -> None:
    heard: list[int] = []
    outcome, _ = run_to_its_timeout(job, shell("exec yes"), on_text=lambda text: heard.append(len(text)))
    assert (outcome.exit_code, outcome.tail[-1]) == (124, "y")
    assert max(heard) < 300_000


def test_a_child_that_never_stops_printing_does_not_hold_the_stage(root: Path, job: Job) -> None:
    limited = replace(job, commands=(shell("yes & echo $! > pid; sleep 0.2"),), resources=Resources(timeout_s=100))
    assert run_job(limited, lambda text: None).exit_code == 0  # and not that of the timeout
    os.kill(int((root / "pid").read_text()), signal.SIGKILL)


def test_much_output_comes_whole(job: Job) -> None:
    outcome, lines = run(job, shell("seq 1 50000"))
    assert outcome.exit_code == 0
    assert lines[1:] == [str(number) for number in range(1, 50001)]
    assert outcome.tail == tuple(str(number) for number in range(49971, 50001))


def test_what_an_earlier_attempt_left_is_cleared(root: Path, job: Job) -> None:
    (root / "out").mkdir()
    (root / "out/half").touch()
    assert run(replace(job, clear=(str(root / "out"),)), shell("mkdir out"))[0].exit_code == 0
    assert os.listdir(root / "out") == []


def test_a_fork_server_that_is_gone_stops_its_commands(root: Path, job: Job) -> None:
    servers = ForkServers(root, ["xmlrpc.client"])
    gone = servers.addresses()
    servers.stop()
    servers.stop()
    outcome, _ = run(replace(job, fork_servers=gone), shell("true"))
    assert (outcome.exit_code, outcome.lost) == (None, True)


def test_a_fork_server_that_was_killed_is_started_again(root: Path, job: Job) -> None:
    servers = ForkServers(root, ["xmlrpc.client"])
    first = servers.addresses()
    assert servers.addresses() == first
    kill_server(first[0])
    wait_until(lambda: servers.addresses()[0] != first[0])  # its parent notices
    second = servers.addresses()
    assert second[1] == first[1]
    assert run(replace(job, fork_servers=second), shell("true"))[0].exit_code == 0
    servers.stop()


def test_a_fork_server_that_lost_a_command_is_not_asked_again(root: Path, job: Job) -> None:
    servers = ForkServers(root, ["xmlrpc.client"])
    first = servers.addresses()
    outcome, _ = run(replace(job, fork_servers=first), shell("kill -9 $PPID; sleep 60"))
    assert outcome.lost
    second = servers.addresses()  # at once, whether its parent has noticed or not
    assert (second[0] != first[0], second[1]) == (True, first[1])
    assert run(replace(job, fork_servers=second), shell("true"))[0].exit_code == 0
    servers.stop()


def kill_server(address: str) -> None:
    """Kill the process that listens at an address, and wait until it is gone."""
    inode = next(line.split()[6] for line in Path("/proc/net/unix").read_text().splitlines() if line.endswith(address))

    def killed() -> bool:
        for process in psutil.Process().children(recursive=True):  # it listens in a process forked by the one started
            with suppress(OSError, psutil.NoSuchProcess):  # it may end, or close another file, meanwhile
                if any(os.readlink(each) == f"socket:[{inode}]" for each in Path(f"/proc/{process.pid}/fd").iterdir()):
                    process.kill()
                    process.wait()
                    return True
        return False

    wait_until(killed)


def assert_ends(pid: int) -> None:
    """Fail unless a process that was killed is gone, or waits for its parent to notice."""
    wait_until(lambda: not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)


def test_a_timeout_ends_a_command_and_all_below_it(job: Job) -> None:
    lasting = shell("sh -c 'echo $$; exec sleep 600' & wait")
    outcome, timeout_s = run_to_its_timeout(job, lasting, shell("echo never"))
    assert (outcome.exit_code, outcome.why) == (124, f"took longer than the {timeout_s:g} s of its timeout")
    (pid,) = outcome.tail
    assert_ends(int(pid))
    assert outcome.seconds < 300


def test_what_ends_well_when_told_to_end_is_no_success(root: Path, job: Job) -> None:
    obliging = shell("trap 'exit 0' TERM; echo begun; touch begun; sleep 600 & wait")
    assert run_to_its_timeout(job, obliging)[0].exit_code == 124
    servers = ForkServers(root, ["xmlrpc.client"])
    (root / "begun").unlink(missing_ok=True)
    stop = threading.Thread(target=lambda: (wait_until((root / "begun").exists), servers.stop()))
    stop.start()
    outcome, _ = run(replace(job, fork_servers=servers.addresses()), obliging)
    stop.join()
    assert (outcome.exit_code, outcome.lost) == (None, True)


def test_a_command_within_its_timeout_ends_as_it_ends(job: Job) -> None:
    limited = replace(job, resources=Resources(timeout_s=300))
    assert run(limited, shell("sleep 0.8; exit 3"))[0].exit_code == 3


def test_a_worker_without_fork_servers_of_the_run_starts_its_own_once(root: Path, job: Job) -> None:
    alone = replace(job, fork_servers=None)
    parents = [run(alone, shell("echo $PPID"))[1][-1] for _ in range(2)]
    assert parents[0] == parents[1]
    assert os.getpid() in [process.pid for process in psutil.Process(int(parents[0])).parents()]


def test_an_exit_with_a_message_prints_it_and_is_a_failure(capsys: pytest.CaptureFixture[str]) -> None:
    assert [system_exit_code(SystemExit(given)) for given in (None, 0, 3)] == [0, 0, 3]
    assert system_exit_code(SystemExit("no such thing")) == 1
    assert capsys.readouterr().err == "no such thing\n"
