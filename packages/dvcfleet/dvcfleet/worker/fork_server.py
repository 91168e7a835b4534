"""The process that forks one child per command, as `python -m dvcfleet.worker.fork_server`.

Arguments: the listening socket, the repository, and third-party modules to import once, for a warm server. A client
connects, sends a line of JSON together with the file descriptor for the command's output, and receives a line of JSON
when the command has ended. A client that sends more, or disconnects, ends its command.

Standard input is connected to the process that started the server. STOP there ends the server and its commands, with
SIGTERM first; LEAVE ends the server alone, after its commands have ended, and leaves their children; the end of the
stream, as when that process is killed, ends all by SIGKILL.
"""

import contextlib
import ctypes
import gc
import json
import os
import selectors
import signal
import socket
import sys
import sysconfig
import time
import weakref
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from dvcfleet.worker import LOADED_AT_START
from dvcfleet.worker.child import become, leave
from dvcfleet.worker.module_server import ModuleServers, serve
from dvcfleet.worker.termination import GRACE_S, KILL, LEAVE, Termination, descendants, processes_of

_PR_SET_CHILD_SUBREAPER = 36
_REQUEST_LIMIT = 1 << 20
_BLOCK = 512  # bytes, in which the kernel counts what is read and written
# Seconds between checks whether ended commands are gone.
_POLL_S = 0.05


def main() -> None:
    """Serve until asked to end; in a forked child, become the command and exit with its exit code."""
    # The run handles the signals that a terminal sends to all of its processes.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    _continue_in_fork()
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    listener = socket.socket(fileno=int(sys.argv[1]))
    if not sys.flags.safe_path:
        # The folder of this package, which may hold other packages too.
        del sys.path[0]
    preload(Path(sys.argv[2]), sys.argv[3:])
    address = listener.getsockname()
    server = ForkingServer(listener)
    request = server.serve()
    if request is not None and "control" in request:
        request = serve(request, LOADED_AT_START)
    if request is not None:
        become(request, LOADED_AT_START)
    _end_all()
    # If the process that started this server was killed, it cannot remove its folder.
    with contextlib.suppress(OSError):
        os.unlink(address)
        os.rmdir(os.path.dirname(address))
    leave(0)


def _continue_in_fork() -> None:
    """Continue in a forked process, while the process that the client started only waits for it.

    Ray sends SIGKILL to the children of a worker whose task was cancelled, but not to this grandchild, which then finds
    its standard input closed and ends the commands cleanly.
    """
    server = os.fork()
    if server:
        os.close(int(sys.argv[1]))
        _, status = os.waitpid(server, 0)
        os._exit(abs(os.waitstatus_to_exitcode(status)))


def preload(root: Path, names: list[str]) -> None:
    """Import modules from outside the repository: the repository's own may change while this process runs."""
    for name in names:
        try:
            spec = find_spec(name.partition(".")[0])
            if spec and not any(
                is_of(root, place) for place in (spec.origin, *(spec.submodule_search_locations or ()))
            ):
                import_module(name)
        except Exception:  # the stage that needs the module will fail and report it
            continue
    for name, module in list(sys.modules.items()):
        # Imported by a third-party module, such as a library that loads plug-ins.
        if name not in LOADED_AT_START and is_of(root, getattr(module, "__file__", None)):
            del sys.modules[name]
    # What these modules finalize is not a child's: torch would take apart all that it has registered, a tenth of a
    # second for each command.
    for finalizer in weakref.finalize._registry:  # type: ignore[attr-defined]
        finalizer.atexit = False
    # All children share these objects: garbage collection in a child would copy every page.
    gc.collect()
    gc.freeze()


def is_of(root: Path, place: str | None) -> bool:
    """Tell whether a module's file belongs to the repository, and not to an environment inside it."""
    if place is None or not (path := Path(place).resolve()).is_relative_to(root.resolve()):
        return False
    return not any(path.is_relative_to(sysconfig.get_path(name)) for name in ("stdlib", "purelib", "platlib"))


@dataclass(eq=False)
class Connection:
    """A client's connection: the part of its request read so far, its command's process, and how that ended."""

    socket: socket.socket
    received: bytes = b""
    descriptors: list[int] = field(default_factory=list)
    pid: int | None = None
    started: float = 0.0
    answer: dict[str, Any] | None = None
    termination: Termination | None = None

    def close(self) -> None:
        """Close the socket, and the descriptor of a request that was not carried out."""
        self.socket.close()
        while self.descriptors:
            os.close(self.descriptors.pop())


class ForkingServer:
    """Forks a child per request; an error on one connection ends only that connection."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._wake, self._awoken = socket.socketpair()
        for descriptor in (listener, self._wake, self._awoken):
            descriptor.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._connections: set[Connection] = set()
        self._modules = ModuleServers()

    def serve(self) -> dict[str, Any] | None:
        """Serve until something arrives at standard input, then return None; in each child, return its request.

        The request of a module server has `control`.
        """
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._awoken.fileno())
        for source in (self._listener, self._wake, 0):
            self._selector.register(source, selectors.EVENT_READ)
        while True:
            is_ending = any(each.termination for each in self._connections)
            for key, _ in self._selector.select(_POLL_S if is_ending else None):
                if key.fileobj == 0:
                    self._modules.kill()
                    return None
                if key.fileobj is self._wake:
                    self._wake.recv(4096)
                elif key.fileobj is self._listener:
                    self._accept()
                elif (request := self._hear(key.data)) is not None:
                    self._close()
                    return request
            self._reap()
            self._answer()

    def _close(self) -> None:
        """Close in a child the descriptors that only its parent needs."""
        signal.set_wakeup_fd(-1)
        for descriptor in (self._listener, self._wake, self._awoken):
            descriptor.close()
        for connection in self._connections:
            connection.close()
        self._modules.close()

    def _accept(self) -> None:
        try:
            client, _address = self._listener.accept()
        except OSError:
            # The client has disconnected, or there are too many open files: do not retry at once.
            time.sleep(_POLL_S)
            return
        client.setblocking(False)
        connection = Connection(client)
        self._connections.add(connection)
        self._selector.register(client, selectors.EVENT_READ, connection)

    def _hear(self, connection: Connection) -> dict[str, Any] | None:
        """Read on; fork when the request is complete, and return it in the child; end the command on a disconnect."""
        if connection not in self._connections:
            return None
        if connection.pid is not None:
            self._selector.unregister(connection.socket)
            connection.termination = Termination(partial(processes_of, connection.pid), GRACE_S)
            return None
        try:
            request = _read(connection)
            return request and self._fork(connection, request)
        except BlockingIOError:
            return None
        except (OSError, ValueError, RecursionError) as error:
            if not isinstance(error, ConnectionError):
                print(f"a request was refused: {error}", file=sys.stderr)
            self._drop(connection)
            return None

    def _fork(self, connection: Connection, request: dict[str, Any]) -> dict[str, Any] | None:
        # Otherwise the child would print the buffered text again.
        sys.stdout.flush()
        sys.stderr.flush()
        server, started = os.getpid(), time.monotonic()
        module = self._modules.of(request)
        pid = module.fork(request, connection.descriptors[0]) if module else None
        if pid is None:
            noted = module.to_note() if module else None
            if (pid := os.fork()) == 0:
                return request | {"output": connection.descriptors.pop(), "server": server, "noted": noted}
            if module and noted:
                module.noter = pid
        os.close(connection.descriptors.pop())
        connection.pid, connection.started = pid, started
        return module.start(request) if module else None

    def _reap(self) -> None:
        """Collect the exit statuses of ended children."""
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
                if pid == 0:
                    return
                for connection in self._connections:
                    if connection.pid == pid:
                        connection.answer = {
                            "exit_code": os.waitstatus_to_exitcode(status),
                            "seconds": time.monotonic() - connection.started,
                            "peak_rss_bytes": usage.ru_maxrss * 1024,
                            "cpu_s": usage.ru_utime + usage.ru_stime,
                            "read_bytes": usage.ru_inblock * _BLOCK,
                            "written_bytes": usage.ru_oublock * _BLOCK,
                        }

    def _answer(self) -> None:
        """Answer the clients whose commands have ended; for a command that was asked to end, wait for all processes."""
        for connection in list(self._connections):
            if connection.termination and not connection.termination.is_over():
                continue
            if connection.answer is not None:
                with contextlib.suppress(OSError):
                    connection.socket.send(json.dumps(connection.answer).encode() + b"\n")
                self._drop(connection)

    def _drop(self, connection: Connection) -> None:
        self._connections.remove(connection)
        if connection.socket in self._selector.get_map():
            self._selector.unregister(connection.socket)
        connection.close()


def _read(connection: Connection) -> dict[str, Any] | None:
    """Read the available bytes; return the request once it is complete; raise ValueError if it is malformed."""
    data, descriptors, _flags, _address = socket.recv_fds(connection.socket, 65536, 1)
    connection.descriptors += descriptors
    connection.received += data
    if not data:
        raise ConnectionError
    if len(connection.received) > _REQUEST_LIMIT or len(connection.descriptors) > 1:
        raise ValueError("too long")
    if not connection.received.endswith(b"\n"):
        return None
    request = json.loads(connection.received)
    if not isinstance(request, dict) or not connection.descriptors:
        raise ValueError("not a request with a descriptor for its output")
    if request.keys() != {"argv", "module", "imports_once", "arguments", "environment", "folder"}:
        raise ValueError(f"unknown fields {sorted(request)}")
    return request


def _end_all() -> None:
    """End all descendants: by SIGKILL at once, unless the process at standard input waits for them, or leaves them."""
    # Leave no zombies: the process that waits for the server would take them for running processes.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    control = selectors.DefaultSelector()
    control.register(0, selectors.EVENT_READ)
    request = os.read(0, 1)
    if request == LEAVE:
        return
    is_awaited = request not in (KILL, b"")
    termination = Termination(descendants, GRACE_S if is_awaited else 0)
    while not termination.is_over():
        if not is_awaited:
            time.sleep(_POLL_S)
        elif control.select(_POLL_S) and os.read(0, 1) in (KILL, b""):  # or that process has ended
            is_awaited = False
            termination = Termination(descendants, 0)


if __name__ == "__main__":
    main()
