"""A Prefect server on loopback for the time of a run, as `python -m dvcfleet.prefect_adapter.server SOCKET`.

The run is at standard input: when it goes away, so does the server.
"""

import os
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dvcfleet.prefect_adapter.database import is_current, make_database

START_LIMIT_S = 120.0
_EVENTS_LIMIT_S = 10.0
_SETTINGS = {
    # What is heard of task runs is written down in groups.
    "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_BATCH_SIZE": "250",
    "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_FLUSH_INTERVAL": "1",
    # A store that nothing here uses would have each of its calls checked, and be compiled anew for that.
    "PY_KEY_VALUE_DISABLE_BEARTYPE": "true",
    "PREFECT_SERVER_LOGGING_LEVEL": "CRITICAL",
    "PREFECT_LOGGING_LEVEL": "CRITICAL",
}
# Only the services that write down what a run reports; nothing here schedules, and nothing is sent anywhere.
_FOR_ONE_RUN = {
    "PREFECT_API_BLOCKS_REGISTER_ON_START": "false",
    "PREFECT_SERVER_SERVICES_SCHEDULER_ENABLED": "false",
    "PREFECT_SERVER_SERVICES_LATE_RUNS_ENABLED": "false",
    "PREFECT_SERVER_SERVICES_CANCELLATION_CLEANUP_ENABLED": "false",
    "PREFECT_SERVER_SERVICES_PAUSE_EXPIRATIONS_ENABLED": "false",
    "PREFECT_SERVER_SERVICES_FOREMAN_ENABLED": "false",
    "PREFECT_SERVER_SERVICES_TRIGGERS_ENABLED": "false",
    # What the events say of task runs is written down already; the events would only say it once more.
    "PREFECT_SERVER_SERVICES_EVENT_PERSISTER_ENABLED": "false",
    "PREFECT_SERVER_EVENTS_STREAM_OUT_ENABLED": "false",
}

# Who holds a slot of a concurrency limit is remembered on disk: else it would stay taken after a restart.
_FOR_SCHEDULES = {"PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE": "prefect.server.concurrency.lease_storage.filesystem"}


class StartError(Exception):
    """The Prefect server did not start."""


class Server:
    """A Prefect server as a child process, with its database under `home`.

    Starts at once and in the background; `wait` before use. It ends when it is stopped, or when this process dies. With
    `schedules` it also starts what is due and acts on events, as a Prefect server of its own does.
    """

    def __init__(self, home: Path, page: bool = False, schedules: bool = False) -> None:
        home.mkdir(parents=True, exist_ok=True)
        self._home, self._log = home, home / "server.log"
        self._answers = False
        with socket.socket() as listener, self._log.open("wb") as log:
            listener.bind(("127.0.0.1", 0))
            listener.listen(128)
            self.address = f"http://127.0.0.1:{listener.getsockname()[1]}"
            self.api = f"{self.address}/api"
            self._process = subprocess.Popen(
                [sys.executable, "-m", "dvcfleet.prefect_adapter.server", str(listener.fileno())],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                cwd=Path(__file__).parents[2],
                env=os.environ
                | _SETTINGS
                | (_FOR_SCHEDULES if schedules else _FOR_ONE_RUN)
                | self._own_settings(home, page),
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
    import gc
    import signal

    for told_to_all in (signal.SIGINT, signal.SIGTERM):  # it ends when the run does, which still has to tell it how
        signal.signal(told_to_all, signal.SIG_IGN)
    _prepare_database(Path(os.environ["PREFECT_HOME"]) / "prefect.db")
    # What is imported stays: to look through it for garbage would take a quarter of the start.
    gc.disable()
    import uvicorn
    from prefect.server.api.server import create_app

    config = uvicorn.Config(create_app(final=True), log_level="critical", access_log=False, timeout_graceful_shutdown=5)
    gc.freeze()
    gc.enable()

    class DeafServer(uvicorn.Server):
        """Ends when the run says so: Ctrl-C is for the run to hear."""

        @contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield

    server = DeafServer(config)

    def end_with_run() -> None:
        sys.stdin.buffer.read()
        _wait_for_events()
        server.should_exit = True

    threading.Thread(target=end_with_run, daemon=True).start()
    listener = socket.socket(fileno=int(sys.argv[1]))
    server.run(sockets=[listener])


def _wait_for_events() -> None:
    """Wait until what was heard of task runs is taken down: Prefect drops what it has not come to when it ends."""
    from prefect.server.utilities.messaging.memory import METRICS

    deadline = time.monotonic() + _EVENTS_LIMIT_S
    while METRICS["events"]["consumed"] < METRICS["events"]["published"] and time.monotonic() < deadline:
        time.sleep(0.02)


def _prepare_database(path: Path) -> None:
    """Make the database if there is none, and leave out Prefect's look for migrations where none is due."""
    if not path.exists():
        make_database(path)
    if is_current(path):
        os.environ["PREFECT_SERVER_DATABASE_MIGRATE_ON_START"] = "false"


if __name__ == "__main__":
    main()
