"""A Prefect server on loopback for the time of a run: `python -m flows.server SOCKET`, the run at standard input."""

import os
import socket
import sqlite3
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

START_LIMIT_S = 120.0
# Only the services that write down what a run reports; nothing here schedules, and nothing is sent anywhere.
_SETTINGS = {
    "PREFECT_API_BLOCKS_REGISTER_ON_START": "false",
    "PREFECT_SERVER_SERVICES_SCHEDULER_ENABLED": "false",
    "PREFECT_SERVER_SERVICES_LATE_RUNS_ENABLED": "false",
    "PREFECT_SERVER_SERVICES_CANCELLATION_CLEANUP_ENABLED": "false",
    "PREFECT_SERVER_SERVICES_PAUSE_EXPIRATIONS_ENABLED": "false",
    "PREFECT_SERVER_SERVICES_FOREMAN_ENABLED": "false",
    "PREFECT_SERVER_SERVICES_TRIGGERS_ENABLED": "false",
    "PREFECT_SERVER_LOGGING_LEVEL": "CRITICAL",
    "PREFECT_LOGGING_LEVEL": "CRITICAL",
}


class StartError(Exception):
    """The Prefect server did not start."""


class Server:
    """A Prefect server as a child process, with its database under `home`.

    Starts at once and in the background; `wait` before use. It ends when it is stopped, or when this process dies.
    """

    def __init__(self, home: Path, page: bool = False) -> None:
        home.mkdir(parents=True, exist_ok=True)
        self._home, self._log = home, home / "server.log"
        self._answers = False
        with socket.socket() as listener, self._log.open("wb") as log:
            listener.bind(("127.0.0.1", 0))
            listener.listen(128)
            self.address = f"http://127.0.0.1:{listener.getsockname()[1]}"
            self.api = f"{self.address}/api"
            self._process = subprocess.Popen(
                [sys.executable, "-m", "flows.server", str(listener.fileno())],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                cwd=Path(__file__).parent.parent,
                env=os.environ | _SETTINGS | self._own_settings(home, page),
                pass_fds=[listener.fileno()],
            )

    def _own_settings(self, home: Path, page: bool) -> dict[str, str]:
        return {
            "PREFECT_HOME": str(home),
            "PREFECT_API_DATABASE_CONNECTION_URL": f"sqlite+aiosqlite:///{home}/prefect.db",
            "PREFECT_API_URL": self.api,
            "PREFECT_UI_API_URL": self.api,
            "PREFECT_UI_STATIC_DIRECTORY": str(home / "page"),
            "PREFECT_SERVER_UI_ENABLED": str(page).lower(),
        }

    def wait(self) -> str:
        """Return the API's address once it answers; raises StartError if it does not start."""
        deadline = time.monotonic() + START_LIMIT_S
        while time.monotonic() < deadline and self._process.poll() is None:
            try:
                with urllib.request.urlopen(f"{self.api}/health", timeout=5):
                    self._answers = True
                    return self.api
            except (urllib.error.URLError, TimeoutError, ConnectionError):
                time.sleep(0.05)
        raise StartError(f"the Prefect server did not start; see {self._log}; without {self._home} it starts afresh")

    def stop(self) -> None:
        """End the server and wait for it: in order if it was used, at once if it is still starting."""
        assert self._process.stdin
        self._process.stdin.close()
        if not self._answers:
            self._process.kill()
        try:
            self._process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def main() -> None:
    """Serve on the given listening socket until standard input ends."""
    import signal

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _make_database(Path(os.environ["PREFECT_HOME"]) / "prefect.db")
    import uvicorn
    from prefect.server.api.server import create_app

    config = uvicorn.Config(create_app(final=True), log_level="critical", access_log=False, timeout_graceful_shutdown=5)

    class DeafServer(uvicorn.Server):
        """Ends when the run says so: Ctrl-C is for the run to hear."""

        @contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield

    server = DeafServer(config)

    def end_with_run() -> None:
        sys.stdin.buffer.read()
        server.should_exit = True

    threading.Thread(target=end_with_run, daemon=True).start()
    listener = socket.socket(fileno=int(sys.argv[1]))
    server.run(sockets=[listener])


def _make_database(path: Path) -> None:
    """Make the database under another name first: a kill must not leave one with half of its tables."""
    if path.exists():
        return
    import multiprocessing

    # Imported before the fork: the child and this process both need it.
    import prefect.server.database  # noqa: F401

    for old in path.parent.glob("*.draft*"):
        old.unlink()
    draft = path.with_suffix(f".{os.getpid()}.draft")
    # In a process of its own, since Prefect remembers the database it first opened.
    maker = multiprocessing.get_context("fork").Process(target=_make_tables, args=[draft])
    maker.start()
    maker.join()
    if maker.exitcode == 0:
        draft.rename(path)


def _make_tables(path: Path) -> None:
    import asyncio

    from prefect.server.database import provide_database_interface
    from prefect.settings import PREFECT_API_DATABASE_CONNECTION_URL, temporary_settings

    with temporary_settings({PREFECT_API_DATABASE_CONNECTION_URL: f"sqlite+aiosqlite:///{path}"}):
        asyncio.run(provide_database_interface().create_db())
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


if __name__ == "__main__":
    main()
