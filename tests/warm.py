"""One process that has imported the libraries: from it are forked those whose imports would take seconds each.

`python tests/warm.py DESCRIPTOR` is that process, which listens there. It ends with its standard input.
`python tests/warm_run.py SOCKET ARGUMENT ...` does what `python ARGUMENT ...` does, in a fork of it that has this
process's open files, folder and environment, and ends as that one ends. The project's own modules are imported by the
fork itself; Prefect's and Dask's settings are read anew. It is not for tests of what is imported when, nor of variables
that the other libraries read when they are imported.

The program `python` in the folder `warm-bin` beside the socket does so for `-c` and `-m`. A fork on whose PATH it comes
first takes it for its own interpreter, so that what it starts is forked too.
"""

import builtins
import ctypes
import fcntl
import gc
import marshal
import os
import runpy
import selectors
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import traceback
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

VARIABLE = "MERGANSER_TESTS_WARM"  # its socket
BIN = "warm-bin"
LIBRARIES = (
    *("torch", "scipy.linalg", "scipy.stats", "sklearn.metrics", "matplotlib.figure", "numba", "open_clip", "datasets"),
    *("transformers.modeling_layers", "transformers.activations", "transformers.models.auto.modeling_auto", "peft"),
    *(
        "mlflow.store.tracking.sqlalchemy_store",
        "openlineage.client.event_v2",
        "networkx",
        "dvc.cli",
        "dvc.repo",
        "dvc.dagascii",
        "scmrepo.git",
    ),
    *("dvc.commands.repro", "dvc.commands.data", "dvc.commands.status", "safetensors.torch", "rich.console", "typer"),
    *("playwright.sync_api", "mkdocs.config.defaults", "fastapi", "sqlalchemy.ext.asyncio", "httpx", "ruamel.yaml"),
    *("matplotlib.backends.backend_svg", "latex2mathml.converter"),
    *("prefect.artifacts", "prefect.context", "prefect.task_runners", "prefect.events.worker", "prefect.flows"),
    *("prefect.flow_runs", "prefect.variables", "prefect.runtime", "prefect.server.api.server"),
    *("distributed", "prefect_dask", "dask_jobqueue", "prefect_kubernetes"),
)
RUN = Path(__file__).with_name("warm_run.py")  # which imports next to nothing: it is started for each fork
PROGRAM = """#!/bin/sh
case "$1" in -c | -m) exec {0} -SP {1} {2} "$@" ;; esac
exec {0} "$@"
"""
_PR_SET_PDEATHSIG = 1
_MADV_COLLAPSE = 25
_HUGE_PAGE = 2 << 20
_REQUEST_BYTES = 1 << 20
_MOST_FILES = 64


def python() -> list[str]:
    """Return the command that starts Python for `-c` or `-m`: forked if there is such a process, as beside xdist's."""
    address = os.environ.get(VARIABLE)
    return [sys.executable, *(("-SP", str(RUN), address) if address else ())]


def program() -> str:
    """Return the path of a Python that forks, if there is such a process."""
    address = os.environ.get(VARIABLE)
    return str(Path(address).with_name(BIN) / "python") if address else sys.executable


class Fork:
    """A Python in a session of its own, as `start` starts it; it ends with this process."""

    def __init__(
        self, arguments: Sequence[str], folder: Path, environment: Mapping[str, str], output: int, errors: int
    ) -> None:
        about = {"arguments": list(arguments), "files": [0, 1, 2], "folder": str(folder), "leads": True}
        self.returncode: int | None = None
        self._connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _REQUEST_BYTES)
        self._connection.connect(os.environ[VARIABLE])
        with open(os.devnull) as nothing:
            data = marshal.dumps(about | {"environment": dict(environment)})
            socket.send_fds(self._connection, [data], [nothing.fileno(), output, errors])
        self.pid = int(self._connection.recv(64))

    def poll(self) -> int | None:
        """Return the exit code, or None while it is at work."""
        with suppress(BlockingIOError):
            self._end(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end; return the exit code."""
        return self._end(timeout)

    def terminate(self) -> None:
        """Ask it to end."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it."""
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def _end(self, timeout: float | None) -> int:
        if self.returncode is None:
            self._connection.settimeout(timeout)
            self.returncode = int(self._connection.recv(64) or 1)
            self._connection.close()
        return self.returncode


Started = Fork | subprocess.Popen[bytes]


def start(
    arguments: Sequence[str],
    folder: Path,
    environment: Mapping[str, str] = os.environ,
    output: int = 1,
    errors: int = 2,
) -> Started:
    """Start `python ARGUMENT ...` in a session of its own, forked if there is such a process.

    Its `pid` is that of Python itself and leads its group, so that signals reach what they would reach of a Python that
    was started anew. `output` and `errors` are open files.
    """
    if VARIABLE in os.environ:
        return Fork(arguments, folder, environment, output, errors)
    return subprocess.Popen(
        [sys.executable, *arguments],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=errors,
        start_new_session=True,
    )


class Warm:
    """That process, as a child of this one, whose environment it has; it ends with this one."""

    def __init__(self, folder: Path) -> None:
        self.address = str(folder / "warm")
        place = folder / BIN / "python"
        place.parent.mkdir()
        place.write_text(PROGRAM.format(*map(shlex.quote, (sys.executable, str(RUN), self.address))))
        place.chmod(0o755)
        # MLflow reads it when it is imported; what is on the path is each fork's own.
        environment = {"MLFLOW_DISABLE_TELEMETRY": "true"} | os.environ
        environment.pop("PYTHONPATH", None)
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.bind(self.address)
            listener.listen(128)
            descriptor = listener.fileno()
            command = [sys.executable, __file__, str(descriptor)]
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, env=environment, pass_fds=[descriptor])

    def stop(self) -> None:
        """End it, and wait for that."""
        assert self._process.stdin
        self._process.stdin.close()
        self._process.wait()
        Path(self.address).unlink(missing_ok=True)


def serve(descriptor: int) -> None:
    """Import the libraries, and fork for each connection, until standard input ends."""
    with socket.socket(fileno=descriptor) as listener, selectors.DefaultSelector() as selector:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # of the terminal; its forks end by it
        del sys.path[0]  # this folder, in which packages have the names of libraries
        path = sys.path[:]
        for name in LIBRARIES:
            import_module(name)
        _import_prefect()
        _fill_numba()
        for finalizer in weakref.finalize._registry:  # type: ignore[attr-defined]
            finalizer.atexit = False  # torch would take apart in each fork what it has registered
        gc.collect()
        gc.freeze()
        _use_huge_pages()
        running: dict[int, socket.socket] = {}
        woken, wake = socket.socketpair()
        wake.setblocking(False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake.fileno())
        for source in (listener, woken, 0):
            selector.register(source, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj == 0:
                    return
                if key.fileobj is woken:
                    woken.recv(4096)
                elif key.fileobj is listener:
                    connection, _ = listener.accept()
                    data, files, _, _ = socket.recv_fds(connection, _REQUEST_BYTES, _MOST_FILES)
                    request = marshal.loads(data)
                    _prepare(request["environment"])
                    pid = os.fork()
                    if not pid:
                        signal.set_wakeup_fd(-1)
                        for each in (listener, woken, wake, connection, selector, *running.values()):
                            each.close()
                        _become(request, files, path)
                    for file in files:
                        os.close(file)
                    with suppress(OSError):
                        connection.send(str(pid).encode())
                    running[pid] = connection
                    selector.register(connection, selectors.EVENT_READ, pid)
                elif key.data in running:  # who asked for it was killed
                    selector.unregister(key.fileobj)
                    os.kill(key.data, signal.SIGKILL)
            _answer(running, selector)


def _import_prefect() -> None:
    """Import all of Prefect but its setting up of logging, which each fork does, by its own settings."""
    from prefect.logging import configuration

    set_up, known = configuration.setup_logging, sys.meta_path[:]
    configuration.setup_logging = lambda incremental=None: None
    import_module("prefect.main")
    configuration.setup_logging = set_up
    sys.meta_path[:] = known  # it adds a finder each time
    del sys.modules["prefect.main"]


def _fill_numba() -> None:
    """Have numba list all that it knows how to compile, which it does when it first takes a loop from its cache."""
    from numba.core.registry import cpu_target

    cpu_target.typing_context.refresh()
    cpu_target.target_context.refresh()


def _use_huge_pages() -> None:
    """Have the kernel gather what was imported in huge pages: a fork, which copies their table, takes half of the time.

    Kernels before 6.1 refuse.
    """
    advise = ctypes.CDLL(None).madvise
    advise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    for line in Path("/proc/self/maps").read_text().splitlines():
        places, rights, _offset, _device, _inode, *name = line.split()
        if rights == "rw-p" and name in ([], ["[heap]"]):
            first, end = (int(place, 16) for place in places.split("-"))
            for place in range(-(-first // _HUGE_PAGE) * _HUGE_PAGE, end - _HUGE_PAGE + 1, _HUGE_PAGE):
                advise(place, _HUGE_PAGE, _MADV_COLLAPSE)


def _prepare(environment: Mapping[str, str]) -> None:
    """Read Prefect's settings for a fork with these variables, unless that is to say what is wrong with them itself."""
    before = dict(os.environ)
    if environment.get("HOME") == before.get("HOME"):
        try:
            _read_settings(environment)
        except ValueError:
            os.environ.clear()
            os.environ.update(before)
        gc.freeze()


def _read_settings(environment: Mapping[str, str]) -> None:
    """Have Prefect read its settings, if these variables say other ones than this process's: it takes 0.1 s."""
    theirs, ours = (
        {name: value for name, value in each.items() if name == "HOME" or name.startswith("PREFECT_")}
        for each in (environment, os.environ)
    )
    if theirs != ours:
        for name in ours:
            del os.environ[name]
        os.environ.update(theirs)
        sys.modules["prefect.context"].refresh_global_settings_context()


def _answer(running: dict[int, socket.socket], selector: selectors.BaseSelector) -> None:
    """Say of each process that ended how it ended."""
    with suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            connection = running.pop(ended[0])
            with suppress(OSError):
                connection.send(str(os.waitstatus_to_exitcode(ended[1])).encode())
            if connection in selector.get_map():
                selector.unregister(connection)
            connection.close()


def _become(request: dict[str, Any], files: Sequence[int], path: Sequence[str]) -> NoReturn:
    """Be the Python that was asked for, in a fork, and end."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if request["leads"]:
        os.setsid()
    # Out of the way of the numbers that they are to have.
    moved = [fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, 1 + max(request["files"])) for file in files]
    for file in files:
        os.close(file)
    for source, target in zip(moved, request["files"], strict=True):
        os.dup2(source, target)
        os.close(source)
    given = request["arguments"]
    begin = next(number for number, each in enumerate(given) if each in ("-c", "-m"))  # after -u or -P
    kind, what, *arguments = given[begin:]
    _read_settings(request["environment"])
    os.environ.clear()
    os.environ.update(request["environment"])
    if any(name.startswith("DASK_") for name in os.environ):
        sys.modules["dask"].config.refresh()
    os.chdir(request["folder"])  # whose prefect.toml, if there is one, is no business of a run's
    if (found := shutil.which("python")) and Path(found).parent.name == BIN:
        from multiprocessing import set_executable

        sys.executable = found
        set_executable(found)
    added = [each for each in os.environ.get("PYTHONPATH", "").split(os.pathsep) if each]
    here = [] if "-P" in given[:begin] else [os.getcwd() if kind == "-m" else ""]
    sys.path[:] = [*here, *added, *path]
    sys.path_importer_cache.clear()
    main = ModuleType("__main__")
    vars(main)["__builtins__"] = builtins
    sys.modules["__main__"] = main
    sys.argv = [kind, *arguments]
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    code = 0
    try:
        if kind == "-m":
            runpy._run_module_as_main(what)  # type: ignore[attr-defined]
        else:
            exec(what, vars(main))
    except SystemExit as end:
        if end.code is not None and not isinstance(end.code, int):
            print(end.code, file=sys.stderr)
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        code = 1
    from dvcfleet.worker.child import leave

    leave(code)


if __name__ == "__main__":
    serve(int(sys.argv[1]))
    os._exit(0)  # without tearing down the libraries
