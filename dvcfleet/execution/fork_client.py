"""The processes that fork a stage's commands, seen from those who want commands run: start them, ask them."""

import json
import os
import selectors
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from dvcfleet.execution.fork_server import ForkServer
from dvcfleet.secrets import masked

_LOOK_AGAIN_S = 0.5


class ForkServers:
    """A host for shell commands and a warm one, for the repository at `root`; they start when first asked for."""

    def __init__(self, root: Path, preload: Sequence[str] = ()) -> None:
        self._root, self._preload = root, preload
        self._hosts: dict[bool, ForkServer] = {}
        self._lock = threading.Lock()

    def addresses(self) -> tuple[str, str]:
        """Return where the shell's host and the warm one listen; one that has gone away is started again."""
        with self._lock:
            for warm in (False, True):
                if warm not in self._hosts or not self._hosts[warm].is_alive():
                    self._hosts[warm] = ForkServer(self._root, warm, self._preload if warm else ())
            return self._hosts[False].address, self._hosts[True].address

    def stop(self) -> None:
        """End the hosts and all commands that they run; again does nothing."""
        with self._lock:
            for host in self._hosts.values():
                host.stop()


_OWN: dict[str, ForkServers] = {}
_OWN_LOCK = threading.Lock()


def own_fork_servers(root: str, preload: Sequence[str] = ()) -> tuple[str, str]:
    """Return the addresses of this process' own hosts for a repository, which end when this process does."""
    with _OWN_LOCK:
        hosts = _OWN.setdefault(root, ForkServers(Path(root), preload))
    return hosts.addresses()


class Tail:
    """Cut a byte stream into lines, hand them on, and keep the last ones."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell, self._rest, self._kept = tell, b"", list[str]()

    def feed(self, data: bytes) -> None:
        """Take the next bytes."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._keep(line)

    def lines(self) -> tuple[str, ...]:
        """Return the last lines."""
        if self._rest:
            self._keep(self._rest)
            self._rest = b""
        return tuple(self._kept)

    def _keep(self, line: bytes) -> None:
        # A progress bar rewrites its line: only what it last showed counts.
        text = masked(line.decode(errors="replace").rstrip("\r").rsplit("\r", 1)[-1])
        self._tell(text)
        self._kept = [*self._kept, text][-30:]


def ask_fork_server(
    address: str, request: Mapping[str, Any], tail: Tail, is_over: Callable[[], bool] | None
) -> dict[str, Any] | None:
    """Have a host run one command, and kill it with all its children once `is_over`, which is asked again and again.

    Returns its exit_code, seconds and peak_rss_bytes, and as `ended` whether it was killed so; None if the host went
    away before the command ended.
    """
    reading, writing = os.pipe()
    with socket.socket(socket.AF_UNIX) as connection, open(reading, "rb", buffering=0) as output:
        try:
            connection.connect(address)
            message = json.dumps(request).encode() + b"\n"
            socket.send_fds(connection, [message[:1]], [writing])
            connection.sendall(message[1:])
        except OSError:
            return None
        finally:
            os.close(writing)
        return _follow(connection, output.fileno(), tail, is_over)


def _follow(
    connection: socket.socket, output: int, tail: Tail, is_over: Callable[[], bool] | None
) -> dict[str, Any] | None:
    """Read output until the host says how the command ended; what a left-over child prints later is not waited for."""
    os.set_blocking(output, False)
    answer, ended = b"", False
    with selectors.DefaultSelector() as selector:
        selector.register(connection, selectors.EVENT_READ)
        selector.register(output, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select(_LOOK_AGAIN_S if is_over and not ended else None):
                if key.fileobj == output:
                    if not _drain(output, tail):
                        selector.unregister(output)
                    continue
                data = connection.recv(65536)
                answer += data
                if not data or answer.endswith(b"\n"):
                    _drain(output, tail)
                    return json.loads(answer) | {"ended": ended} if answer.endswith(b"\n") else None
            if is_over and not ended and is_over():
                # The host takes this for a hang-up: it kills the command, and yet answers when it is gone.
                ended = True
                connection.shutdown(socket.SHUT_WR)


def _drain(output: int, tail: Tail) -> bool:
    """Read what is there; False at the end of the stream."""
    while True:
        try:
            data = os.read(output, 65536)
        except BlockingIOError:
            return True
        if not data:
            return False
        tail.feed(data)
