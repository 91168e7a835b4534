"""One process that has imported the libraries: from it are forked those whose imports would take seconds each.

`python tests/warm.py serve DESCRIPTOR` is that process, which listens there. It ends with its standard input.
`python tests/warm.py run SOCKET ARGUMENT ...` does what `python ARGUMENT ...` does, in a fork of it that has this
process's open files, folder and environment, and ends as that one ends. The project's own modules are imported by the
fork itself; Prefect's settings are read anew. It is not for tests of what is imported when, nor of variables that the
other libraries read when they are imported.

The program `python` in the folder `warm-bin` beside the socket does so for `-c` and `-m`. A fork on whose PATH it comes
first takes it for its own interpreter, so that what it starts is forked too.
"""

import builtins
import ctypes
import fcntl
import gc
import json
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
from collections.abc import Iterator, Sequence
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
    *("mlflow", "openlineage.client.event_v2", "networkx", "dvc.cli", "dvc.repo", "dvc.dagascii", "scmrepo.git"),
    *("dvc.commands.repro", "dvc.commands.data", "dvc.commands.status", "safetensors.torch", "rich.console", "typer"),
    *("playwright.sync_api", "mkdocs.config.defaults", "fastapi", "sqlalchemy.ext.asyncio", "httpx", "ruamel.yaml"),
    *("matplotlib.backends.backend_svg", "latex2mathml.converter"),
    *("prefect.artifacts", "prefect.context", "prefect.task_runners", "prefect.events.worker", "prefect.flows"),
    # Not prefect.main, which sets logging up by the settings.
    *("prefect.flow_runs", "prefect.variables", "prefect.runtime", "prefect.server.api.server"),
)
PROGRAM = """#!/bin/sh
case "$1" in -c | -m) exec {0} -SP {1} run {2} "$@" ;; esac
exec {0} "$@"
"""
_PR_SET_PDEATHSIG = 1
_REQUEST_BYTES = 1 << 20
_MOST_FILES = 64


def python() -> list[str]:
    """Return the command that starts Python for `-c` or `-m`: forked if there is such a process, as beside xdist's."""
    address = os.environ.get(VARIABLE)
    return [sys.executable, *(("-SP", __file__, "run", address) if address else ())]


def program() -> str:
    """Return the path of a Python that forks, if there is such a process."""
    address = os.environ.get(VARIABLE)
    return str(Path(address).with_name(BIN) / "python") if address else sys.executable


class Warm:
    """That process, as a child of this one, whose environment it has; it ends with this one."""

    def __init__(self, folder: Path) -> None:
        self.address = str(folder / "warm")
        place = folder / BIN / "python"
        place.parent.mkdir()
        place.write_text(PROGRAM.format(*map(shlex.quote, (sys.executable, __file__, self.address))))
        place.chmod(0o755)
        # MLflow reads it when it is imported; what is on the path is each fork's own.
        environment = {"MLFLOW_DISABLE_TELEMETRY": "true"} | os.environ
        environment.pop("PYTHONPATH", None)
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.bind(self.address)
            listener.listen(128)
            descriptor = listener.fileno()
            command = [sys.executable, __file__, "serve", str(descriptor)]
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
        gc.collect()
        gc.freeze()
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
                    pid = os.fork()
                    if not pid:
                        signal.set_wakeup_fd(-1)
                        for each in (listener, woken, wake, connection, selector, *running.values()):
                            each.close()
                        _become(json.loads(data), files, path)
                    for file in files:
                        os.close(file)
                    running[pid] = connection
                    selector.register(connection, selectors.EVENT_READ, pid)
                elif key.data in running:  # who asked for it was killed
                    selector.unregister(key.fileobj)
                    os.kill(key.data, signal.SIGKILL)
            _answer(running, selector)


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
    # Out of the way of the numbers that they are to have.
    moved = [fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, 1 + max(request["files"])) for file in files]
    for file in files:
        os.close(file)
    for source, target in zip(moved, request["files"], strict=True):
        os.dup2(source, target)
        os.close(source)
    kind, what, *arguments = request["arguments"][request["arguments"][0] == "-u" :]
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.modules["prefect.context"].refresh_global_settings_context()
    os.chdir(request["folder"])  # whose prefect.toml, if there is one, is no business of a run's
    if (found := shutil.which("python")) and Path(found).parent.name == BIN:
        from multiprocessing import set_executable

        sys.executable = found
        set_executable(found)
    added = [each for each in os.environ.get("PYTHONPATH", "").split(os.pathsep) if each]
    sys.path[:] = [os.getcwd() if kind == "-m" else "", *added, *path]
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


def run(address: str, arguments: Sequence[str]) -> NoReturn:
    """Have it fork a process, and end as that one ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of the terminal, which the fork gets too
    files = sorted(_inherited())
    about = {"arguments": arguments, "files": files, "folder": os.getcwd(), "environment": dict(os.environ)}
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _REQUEST_BYTES)
        connection.connect(address)
        socket.send_fds(connection, [json.dumps(about).encode()], files)
        code = int(connection.recv(64) or 1)
    if code < 0:
        with suppress(OSError):  # SIGKILL has no other
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


def _inherited() -> Iterator[int]:
    """List the open files that this process was started with."""
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # that of this list
            if os.get_inheritable(int(name)):
                yield int(name)


if __name__ == "__main__":
    if sys.argv[1] == "run":
        run(sys.argv[2], sys.argv[3:])
    serve(int(sys.argv[2]))
    os._exit(0)  # without tearing down the libraries
