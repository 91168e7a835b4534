"""Processes that have imported what one module imports, and fork the commands `python -m MODULE ...`.

A warm fork server starts one for a module of the project's own packages once a command of it has ended. It imports
what the module imports at its top and what else of its package that command had imported by its end; not the module
itself, which each command executes. A command is a child of the fork server as any other: a module server can be killed
at any time, and the next command is forked by the fork server.
"""

import ast
import gc
import json
import os
import random
import signal
import socket
import sys
import time
from collections.abc import Iterator, Mapping, Set
from contextlib import suppress
from importlib import import_module
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from itertools import takewhile
from mmap import mmap
from pathlib import Path
from types import ModuleType
from typing import Any

from dvcfleet.worker.child import (
    NOTED_BYTES,
    VARYING,
    connect,
    end_with,
    enter,
    modules_of_folder,
    noted_names,
    prepare_imports,
)

MOST = 8
_REQUEST_LIMIT = 1 << 20
_CLOCK_REALTIME_COARSE = 5  # by which the kernel dates changes of files
_POLL_S = 0.001

# A file's inode, size, and when its content and it itself last changed; None if it is not there.
State = tuple[int, int, int, int] | None


class ModuleServers:
    """The module servers of a fork server: those that were asked for last, by all that decides what is imported."""

    def __init__(self) -> None:
        self._known: dict[object, ModuleServer] = {}

    def of(self, request: Mapping[str, Any]) -> "ModuleServer | None":
        """Return the module server for a request, which may not be started; None if its module may have none."""
        if not request["imports_once"]:
            return None
        environment = frozenset((name, each) for name, each in request["environment"].items() if name not in VARYING)
        key = (request["module"], request["folder"], environment)
        server = self._known[key] = self._known.pop(key) if key in self._known else ModuleServer()
        if len(self._known) > MOST:
            self._known.pop(next(iter(self._known))).close()
        return server

    def close(self) -> None:
        """Close the sockets: in the fork server, this ends the module servers."""
        for server in self._known.values():
            server.close()

    def kill(self) -> None:
        """End the module servers, and wait until they are gone."""
        for server in self._known.values():
            server.kill()


class ModuleServer:
    """One of them, as the fork server sees it: not started, importing, ready, or refused.

    What a first command has imported by its end, the process `noter`, it notes in memory that it shares with this one.
    """

    def __init__(self) -> None:
        self._noted = mmap(-1, NOTED_BYTES)
        self.noter = 0
        self._pid = 0
        self._control: socket.socket | None = None
        self._is_ready = self._is_refused = False

    def fork(self, request: Mapping[str, Any], output: int) -> int | None:
        """Have it fork a command, if it is ready and would import the same again; return the command's process id."""
        if self._control is None:
            return None
        try:
            if not self._is_ready:
                self._is_ready = bool(self._control.recv(1, socket.MSG_DONTWAIT))
                self._is_refused = not self._is_ready
            if pid := _ask(self._control, request, output):
                return pid
        except BlockingIOError:  # it is importing
            return None
        except OSError:
            pass
        self.close()
        return None

    def to_note(self) -> mmap | None:
        """Return where the next command is to note what it has imported: one at a time, until one has."""
        return (
            self._noted if not self._noted[0] and not (self.noter and os.path.exists(f"/proc/{self.noter}")) else None
        )

    def start(self, request: Mapping[str, Any]) -> dict[str, Any] | None:
        """Start it if a command of the module has ended; in its process, return what `serve` takes."""
        if self._control or self._is_refused or not self._noted[0]:
            return None
        control, own = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        server = os.getpid()
        try:
            self._pid = os.fork()
        except OSError:  # no memory, or too many processes
            control.close()
            own.close()
            return None
        if self._pid == 0:
            control.close()
            return {**request, "control": own, "server": server, "names": noted_names(self._noted)}
        own.close()
        self._control, self._is_ready = control, False
        return None

    def close(self) -> None:
        """Close the socket to it."""
        if self._control:
            self._control.close()
            self._control = None

    def kill(self) -> None:
        """End it, and wait until it is gone."""
        if self._control:
            with suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)
            with suppress(ChildProcessError):
                os.waitpid(self._pid, 0)
            self.close()


def _ask(control: socket.socket, request: Mapping[str, Any], output: int) -> int:
    """Return the process id of a request's command, which sends it itself; 0 if there is none that could."""
    reading, writing = os.pipe()
    with open(reading, "rb", buffering=0) as said:
        try:
            socket.send_fds(control, [json.dumps(request).encode()], [output, writing])
        finally:
            os.close(writing)
        return int(said.read() or 0)


def serve(request: dict[str, Any], loaded_at_start: Set[str]) -> dict[str, Any]:
    """Import in this process what a request's module imports, and fork commands; in each, return its request.

    It exits if an import fails or leaves more than modules behind, if what it imported has changed, and with the fork
    server.
    """
    control: socket.socket = request["control"]
    end_with(request["server"])
    connect(os.memfd_create("printed"))
    enter(request)
    sys.argv = [request["module"]]
    others = prepare_imports(loaded_at_start)
    try:
        imports = Imports(request, others)
        control.send(b"r")
        while True:
            data, descriptors, _flags, _address = socket.recv_fds(control, _REQUEST_LIMIT, 2)
            if not data or not imports.are_current():
                break
            if _forked(request["server"]):
                control.close()
                output, said = descriptors
                os.write(said, str(os.getpid()).encode())
                os.close(said)
                return json.loads(data) | {"output": output, "server": request["server"], "others": others}
            for descriptor in descriptors:
                os.close(descriptor)
    except BaseException:  # the command says what is wrong with an import
        os._exit(1)
    os._exit(0)


def _forked(server: int) -> bool:
    """Fork a command's process as a child of the fork server: return True there, False here."""
    parent = os.fork()
    if parent:
        os.waitpid(parent, 0)
        return False
    parent = os.getpid()
    if os.fork():
        os._exit(0)  # which leaves its child to the fork server
    while os.getppid() == parent:
        time.sleep(_POLL_S)
    if os.getppid() != server:
        os._exit(1)
    return True


class Imports:
    """What this process imports for a module. Raises ValueError if that leaves more behind than modules."""

    def __init__(self, request: Mapping[str, Any], others: Set[str]) -> None:
        self._folder = Path(request["folder"])
        self._names = modules_of_folder(self._folder)
        started, before = time.clock_gettime_ns(_CLOCK_REALTIME_COARSE), _traces()
        main = _import_imports_of(request["module"])
        for name in request["names"]:
            import_module(name)
        if _traces() != before or main.name in sys.modules:
            raise ValueError(main.name)
        self._files = {place: _state(place) for place in {str(main.origin), *_places(sys.modules.keys() - others)}}
        # Else it may have been edited after it was imported.
        self._are_old = all(state and state[-1] < started for state in self._files.values())
        gc.collect()
        gc.freeze()

    def are_current(self) -> bool:
        """Tell whether a command would import the same now."""
        is_same = all(_state(place) == state for place, state in self._files.items())
        return is_same and self._are_old and modules_of_folder(self._folder) == self._names


def _import_imports_of(module: str) -> ModuleSpec:
    """Import what a module, or a package that runs as one, imports before any other statement; return its spec."""
    spec = find_spec(module)
    if spec and spec.submodule_search_locations is not None:
        spec = find_spec(f"{module}.__main__")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(module)
    first = takewhile(_is_import, ast.parse(Path(spec.origin).read_bytes()).body)
    exec(compile(ast.Module([*first], []), spec.origin, "exec"), {"__name__": spec.name, "__package__": spec.parent})
    return spec


def _is_import(statement: ast.stmt) -> bool:
    """Tell whether a statement is an import, or a docstring."""
    is_text = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    return is_text or isinstance(statement, ast.Import | ast.ImportFrom)


def _traces() -> tuple[object, ...]:
    """Return what an import must leave as it is, as a fork does not have it, or shares it with others.

    Threads, children, open files, signals' handlers, the folder, and the state of random numbers; and what was printed.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    has_children = False
    with suppress(ChildProcessError):
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        has_children = True
    handlers = [signal.getsignal(number) for number in signal.valid_signals()]
    printed = os.fstat(1).st_size
    lists = [os.listdir(f"/proc/self/{each}") for each in ("task", "fd")]
    return (*lists, has_children, handlers, os.getcwd(), random.getstate(), printed)


def _places(modules: Set[str]) -> Iterator[str]:
    """Yield the files of imported modules, and the folders of packages: a new module in these may be listed."""
    for module in [sys.modules[name] for name in modules]:
        names = vars(module) if isinstance(module, ModuleType) else {}
        if names.get("__file__"):
            yield names["__file__"]
        yield from map(str, names.get("__path__", ()))


def _state(path: str) -> State:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
