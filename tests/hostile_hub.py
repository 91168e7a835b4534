"""A hub that answers as no hub should: `tests.hub` with its answers changed on the way."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import ThreadingHTTPServer
from pathlib import Path

from tests.hub import POLL_S, Handler, Hub


@dataclass
class Answer:
    """An answer before it is sent."""

    method: str
    path: str
    status: int
    body: bytes
    headers: dict[str, str]
    asks: Mapping[str, str]  # the request's headers


Change = Callable[[Answer], None]


class HostileHandler(Handler):
    """Change each answer before it is sent, or send it in another way."""

    change: Change | None = None
    trickle_s: float = 0.0  # between the bytes of a head, where it is not 0
    slow_s: float = 0.0  # between the bytes of a body
    endless: bool = False  # a body without an end

    def send(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        """Send an answer that is not whole, or late."""
        answer = Answer(self.command, self.path, status, body, headers, dict(self.headers))
        if self.change is not None:
            type(self).change(answer)  # type: ignore[misc]
        is_file = "/resolve/" in self.path or "/store/" in self.path
        if self.trickle_s:
            return self._drip(b"HTTP/1.1 200 OK\r\nX-Long: " + b"x" * 10_000, self.trickle_s)
        if self.endless and self.command == "GET":
            return self._pour(answer)
        if self.slow_s and self.command == "GET" and is_file:
            self._start(answer)
            return self._drip(answer.body, self.slow_s)
        self._start(answer)
        if self.command != "HEAD":
            self.wfile.write(answer.body)
        return None

    def _start(self, answer: Answer) -> None:
        self.send_response(answer.status)
        for name, value in ({"Content-Length": str(len(answer.body))} | answer.headers).items():
            self.send_header(name, value)
        self.end_headers()

    def _drip(self, content: bytes, seconds: float) -> None:
        try:
            for byte in content:
                self.wfile.write(bytes([byte]))
                self.wfile.flush()
                time.sleep(seconds)
        except OSError:  # the client went away
            self.close_connection = True

    def _pour(self, answer: Answer) -> None:
        self.send_response(answer.status)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        try:
            while True:
                self.wfile.write(b"10000\r\n" + b" " * 0x10000 + b"\r\n")
        except OSError:
            self.close_connection = True


@contextmanager
def serve_hostile(folders: dict[str, Path], commit: str, **how: object) -> Iterator[Hub]:
    """Serve repositories as `tests.hub.serve` does, with the attributes of HostileHandler as they are given."""
    hub = Hub(folders, commit)
    change = how.pop("change", None)
    members = {"hub": hub, **how, **({"change": staticmethod(change)} if change else {})}  # type: ignore[arg-type]
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("BoundHandler", (HostileHandler,), members))
    server.daemon_threads = True
    hub.url = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, args=[POLL_S], daemon=True).start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
