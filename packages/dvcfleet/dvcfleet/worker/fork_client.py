"""The client side of fork servers: start them, send them requests, stop them."""

import fcntl
import json
import os
import selectors
import shutil
import socket
import subprocess
import sys
import tempfile
import termios
import threading
from array import array
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from dvcfleet.dvc_adapter.stages import command_environment
from dvcfleet.process_settings import given_limit
from dvcfleet.project import project_of
from dvcfleet.worker.output import Lines
from dvcfleet.worker.termination import KILL, STOP

_POLL_S = 0.5
_READ_BYTES = 1 << 16

# Longest temporary folder, in characters: a socket's path has at most 107.
_LONGEST_FOLDER = 75


class ForkServer:
    """A fork server for the repository at `root`, as a child process listening at `address`.

    Its commands get the environment of this process; warm ones find the modules of `preload` imported already, under
    these `variables`.
    """

    def __init__(self, root: Path, preload: Sequence[str] = (), variables: Mapping[str, str] | None = None) -> None:
        folder = tempfile.gettempdir()
        self._folder = tempfile.TemporaryDirectory(
            prefix="dvcfleet-", dir=folder if len(folder) <= _LONGEST_FOLDER else "/tmp", ignore_cleanup_errors=True
        )
        self.address = f"{self._folder.name}/socket"
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(self.address)
            listener.listen(128)
            self._process = subprocess.Popen(
                [sys.executable, "-m", "dvcfleet.worker.fork_server", str(listener.fileno()), str(root), *preload],
                stdin=subprocess.PIPE,
                bufsize=0,
                # So that this package is found also where it is not installed.
                cwd=Path(__file__).parents[2],
                env=command_environment() | dict(variables or {}) | given_limit(),
                pass_fds=[listener.fileno()],
                # This process handles the signals that a terminal sends to all of its processes.
                start_new_session=True,
            )

    def is_alive(self) -> bool:
        """Tell whether the server is running and was not found dying: its socket is removed then."""
        return self._process.poll() is None and os.path.exists(self.address)

    def tell_to_stop(self, how: bytes = STOP) -> None:
        """Tell the server to end all its commands and then itself, or only itself."""
        assert self._process.stdin
        if not self._process.stdin.closed:
            with suppress(BrokenPipeError):
                self._process.stdin.write(how)

    def stop(self, how: bytes = STOP) -> None:
        """End the server and all its commands, or only itself, and wait for it; a second call does nothing."""
        self.tell_to_stop(how)
        # With a limit it looks again and again: a signal that another thread received does not end a system call.
        self._process.wait(threading.TIMEOUT_MAX)
        assert self._process.stdin
        self._process.stdin.close()
        self._folder.cleanup()


class ForkServers:
    """A cold fork server, for shell commands, and with modules to `preload` a warm one; started on first use."""

    def __init__(self, root: Path, preload: Sequence[str] = (), variables: Mapping[str, str] | None = None) -> None:
        self._root, self._warm = root, (preload, variables)
        self._servers: dict[bool, ForkServer] = {}
        self._lock = threading.Lock()

    def addresses(self) -> tuple[str, str | None]:
        """Return the addresses of the cold and the warm server; a killed server is restarted."""
        preload = self._warm[0]
        with self._lock:
            for is_warm in (False, True) if preload else (False,):
                server = self._servers.get(is_warm)
                if server is None or not server.is_alive():
                    if server is not None:
                        server.stop()  # what is left of it
                    self._servers[is_warm] = ForkServer(self._root, *(self._warm if is_warm else ()))
            return self._servers[False].address, self._servers[True].address if preload else None

    def stop(self, how: bytes = STOP) -> None:
        """End the servers and their commands; with LEAVE, what ended commands left behind lives on."""
        with self._lock:
            for server in self._servers.values():
                server.tell_to_stop(how)
            for server in self._servers.values():
                server.stop(how)

    def hasten(self) -> None:
        """Have the servers kill their commands, also while ending them; without the lock, which `stop` holds then."""
        for server in list(self._servers.values()):
            server.tell_to_stop(KILL)


_OWN: dict[str, ForkServers] = {}
_OWN_LOCK = threading.Lock()


def own_fork_servers(root: str) -> tuple[str, str | None]:
    """Return the addresses of this process's own fork servers for a repository, which end with this process."""
    with _OWN_LOCK:
        servers = _OWN.get(root)
        if servers is None:
            project = project_of(Path(root))
            servers = _OWN[root] = ForkServers(Path(root), project.preload, project.variables(""))
    return servers.addresses()


def is_own_python(path: str) -> bool:
    """Tell whether `python` on a PATH is this interpreter, by folder too: environments' ones are links to one file."""
    executable = shutil.which("python", path=path)
    if executable is None or not os.path.isabs(executable):
        return False
    folders = {os.path.realpath(os.path.dirname(each)) for each in (executable, sys.executable)}
    return len(folders) == 1 and os.path.samefile(executable, sys.executable)


def keep_reading(log: Path, output: int) -> None:
    """Start a process that logs what children left behind by a command print: without a reader they would be killed."""
    with suppress(OSError):
        subprocess.Popen(
            [sys.executable, "-m", "dvcfleet.worker.output", str(log)],
            stdin=output,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=Path(__file__).parents[2],
            start_new_session=True,
        )


def run_command(
    address: str,
    request: Mapping[str, Any],
    lines: Lines,
    is_over: Callable[[], bool] | None = None,
    on_left: Callable[[int], None] | None = None,
) -> dict[str, Any] | None:
    """Have a fork server run one command; when `is_over`, which is polled, is true, end it with all its children.

    If it left children behind that may go on printing, `on_left` is called with the descriptor to read that from.
    Returns its exit_code, seconds and peak_rss_bytes, and as `ended` whether it was ended this way; None if the server
    died before the command ended. It is not asked again then: a killed process may take a while to be gone.
    """
    reading, writing = os.pipe()
    with socket.socket(socket.AF_UNIX) as connection, open(reading, "rb", buffering=0) as output:
        is_sent = _send(connection, address, request, writing)
        answer, is_open = _follow(connection, output.fileno(), lines, is_over) if is_sent else (None, False)
        if is_open and answer and not answer["ended"] and on_left:
            on_left(output.fileno())
    if answer is None:
        Path(address).unlink(missing_ok=True)
    return answer


def _send(connection: socket.socket, address: str, request: Mapping[str, Any], output: int) -> bool:
    """Send a request with the descriptor for its output, which is closed here; tell whether the server took it."""
    try:
        connection.connect(address)
        message = json.dumps(request).encode() + b"\n"
        socket.send_fds(connection, [message[:1]], [output])
        connection.sendall(message[1:])
    except OSError:
        return False
    finally:
        os.close(output)
    return True


def _follow(
    connection: socket.socket, output: int, lines: Lines, is_over: Callable[[], bool] | None
) -> tuple[dict[str, Any] | None, bool]:
    """Read output until the server reports the command's end; also return whether children still hold the pipe."""
    os.set_blocking(output, False)
    answer, ended, is_open = b"", False, True
    with selectors.DefaultSelector() as selector:
        selector.register(connection, selectors.EVENT_READ)
        selector.register(output, selectors.EVENT_READ)
        while True:
            waits = (lines.due_s(), _POLL_S if is_over and not ended else None)
            for key, _ in selector.select(min((each for each in waits if each is not None), default=None)):
                if key.fileobj == output:
                    is_open = _read(output, lines)
                    if not is_open:
                        selector.unregister(output)
                    continue
                data = _received(connection)
                answer += data
                if not data or answer.endswith(b"\n"):
                    is_open = is_open and _read_all(output, lines)
                    return (json.loads(answer) | {"ended": ended} if answer.endswith(b"\n") else None), is_open
            if lines.due_s() == 0:
                lines.pass_on()
            if is_over and not ended and is_over():
                # The server treats this as a disconnect: it ends the command, and answers when all processes are gone.
                ended = True
                connection.shutdown(socket.SHUT_WR)


def _received(connection: socket.socket) -> bytes:
    try:
        return connection.recv(65536)
    except ConnectionResetError:
        return b""


def _read_all(output: int, lines: Lines) -> bool:
    """Read what is in the pipe now, and not what children go on to print; return False at the end of the stream."""
    left = array("i", [0])
    fcntl.ioctl(output, termios.FIONREAD, left)
    end = left[0]
    while end > 0:
        data = os.read(output, min(end, _READ_BYTES))
        end -= len(data)
        lines.feed(data)
    return _read(output, lines)


def _read(output: int, lines: Lines) -> bool:
    """Read once; return False at the end of the stream."""
    try:
        data = os.read(output, _READ_BYTES)
    except BlockingIOError:
        return True
    lines.feed(data)
    return bool(data)
