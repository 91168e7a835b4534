"""The process that forks one child per command, as `python -m dvcfleet.execution.fork_server`.

Arguments: the listening socket, warm or cold, the repository, modules to import once. The run is at standard input.

It stays small or, as the warm host, imports the heavy modules once; each command gets a fresh process of its own,
whose exit code and peak memory are exact. When the run goes away, so do the host and all processes below it.
"""

import atexit
import contextlib
import ctypes
import gc
import json
import os
import runpy
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

import psutil  # type: ignore[import-untyped]

_LIBC = ctypes.CDLL(None)
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


@dataclass
class Child:
    """A running command, the connection that asked for it, and when it began."""

    connection: socket.socket
    started: float


class ForkServer:
    """A host for the repository at `root`, as a child process listening at `address`.

    The commands get the environment of this process; `python` is the running interpreter.
    """

    def __init__(self, root: Path, warm: bool, preload: Sequence[str] = ()) -> None:
        from dvc.utils import fix_env

        environment = dict(fix_env(None))
        environment["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), environment.get("PATH", os.defpath)])
        self._folder = tempfile.TemporaryDirectory(prefix="dvcfleet-", ignore_cleanup_errors=True)
        self.address = f"{self._folder.name}/host"
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(self.address)
            listener.listen(128)
            arguments = [str(listener.fileno()), "warm" if warm else "cold", str(root), *preload]
            self._process = subprocess.Popen(
                [sys.executable, "-m", "dvcfleet.execution.fork_server", *arguments],
                stdin=subprocess.PIPE,
                # So that this package is found also where it is not installed.
                cwd=Path(__file__).parents[2],
                env=environment,
                pass_fds=[listener.fileno()],
            )

    def is_alive(self) -> bool:
        """Tell whether the host still runs."""
        return self._process.poll() is None

    def stop(self) -> None:
        """End the host and all commands it runs, and wait for it; again does nothing."""
        assert self._process.stdin
        self._process.stdin.close()
        self._process.wait()
        self._folder.cleanup()


def main() -> None:
    """Serve until the run at standard input goes away; in a forked child, become the command and end as it ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform == "linux":
        _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    listener = socket.socket(fileno=int(sys.argv[1]))
    if sys.argv[2] == "warm":
        _preload(sys.argv[4:])
    address = listener.getsockname()
    request = _serve(listener)
    listener.close()
    if request is None:
        _end_descendants()
        # Who started this host may have been killed, and can no longer tidy up.
        with contextlib.suppress(OSError):
            os.unlink(address)
            os.rmdir(os.path.dirname(address))
        leave(0)
    else:
        _become(request)


def _preload(names: list[str]) -> None:
    """Import third-party modules; the repository's own are never imported here: they may change while this runs."""
    for name in names:
        # A module that cannot be imported is for the stage that needs it to report.
        with contextlib.suppress(ImportError):
            import_module(name)
    # What all children share is for none of them to look through: a collection would copy every page.
    gc.collect()
    gc.freeze()


def _serve(listener: socket.socket) -> dict[str, Any] | None:
    """Fork a child per request. Returns None when the run is gone, and in each child the request."""
    children: dict[int, Child] = {}
    wake, awoken = socket.socketpair()
    awoken.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(awoken.fileno())
    try:
        return _loop(listener, wake, children)
    finally:
        signal.set_wakeup_fd(-1)


def _loop(listener: socket.socket, wake: socket.socket, children: dict[int, Child]) -> dict[str, Any] | None:
    with selectors.DefaultSelector() as selector:
        for source in (listener, wake, sys.stdin.buffer):
            selector.register(source, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj is sys.stdin.buffer:
                    return None
                if key.fileobj is wake:
                    wake.recv(4096)
                    _reap(children, selector)
                elif key.fileobj is listener:
                    connection, _address = listener.accept()
                    request = _start(connection, children)
                    if request is not None:
                        return request
                    selector.register(connection, selectors.EVENT_READ)
                else:
                    _abandon(key.fileobj, children, selector)


def _start(connection: socket.socket, children: dict[int, Child]) -> dict[str, Any] | None:
    """Read a request and fork; return it in the child."""
    first, (output,), _flags, _address = socket.recv_fds(connection, 65536, 1)
    message = first
    while not message.endswith(b"\n"):
        message += connection.recv(65536)
    request = json.loads(message)
    # Whoever forks does not want the buffered text twice.
    sys.stdout.flush()
    sys.stderr.flush()
    host_pid, started = os.getpid(), time.monotonic()
    pid = os.fork()
    if pid == 0:
        request |= {"output": output, "host": host_pid}
        return request
    os.close(output)
    children[pid] = Child(connection, started)
    return None


def _reap(children: dict[int, Child], selector: selectors.BaseSelector) -> None:
    """Tell those that asked how their commands ended."""
    while True:
        try:
            pid, status, usage = os.wait4(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        child = children.pop(pid, None)
        if child is None:
            continue
        unit = 1 if sys.platform == "darwin" else 1024
        answer = {
            "exit_code": os.waitstatus_to_exitcode(status),
            "seconds": time.monotonic() - child.started,
            "peak_rss_bytes": usage.ru_maxrss * unit,
        }
        if child.connection in selector.get_map():
            selector.unregister(child.connection)
        with contextlib.suppress(BrokenPipeError), child.connection:
            child.connection.sendall(json.dumps(answer).encode() + b"\n")


def _abandon(connection: Any, children: dict[int, Child], selector: selectors.BaseSelector) -> None:
    """Kill the command of somebody who hung up, or who wants to hear of its end but send no more."""
    selector.unregister(connection)
    for pid, child in children.items():
        if child.connection is connection:
            _kill([psutil.Process(pid), *psutil.Process(pid).children(recursive=True)])


def _end_descendants() -> None:
    _kill(psutil.Process().children(recursive=True))


def _kill(processes: list[psutil.Process]) -> None:
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


def _become(request: dict[str, Any]) -> NoReturn:
    """In the child: run the command in place of the host."""
    if sys.platform == "linux":
        # A command outlives its host for no moment: its files would change under the next run.
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != request["host"]:
        sys.exit(1)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (request["output"], 1), (request["output"], 2)):
        os.dup2(source, target)
    os.close(nothing)
    os.close(request["output"])
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    if request["module"] is None:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.execvp(request["argv"][0], request["argv"])
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    sys.argv = [request["module"], *request["argv"]]
    sys.path[0] = os.getcwd()
    leave(_exit_code_of(request["module"]))


def _exit_code_of(module: str) -> int:
    """Run a module as `python -m` does, and return the exit code that it would have ended with."""
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        return exit_code(end)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def exit_code(end: SystemExit) -> int:
    """Return the exit code that an interpreter would end with, after printing the message if there is one."""
    if end.code is None or isinstance(end.code, int):
        return end.code or 0
    print(end.code, file=sys.stderr)
    return 1


def leave(code: int) -> NoReturn:
    """End as an interpreter does, but without taking its modules apart: here that takes longer than most stages."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
