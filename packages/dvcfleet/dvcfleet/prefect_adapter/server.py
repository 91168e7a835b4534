"""A Prefect server on loopback for the time of a run, as `python -m dvcfleet.prefect_adapter.server SOCKET`.

Standard input is connected to the run: when the run dies, the server ends. It answers its own pages and those who have
its secret, and no page of another server.
"""

import errno
import os
import secrets
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
from typing import Any

from dvcfleet.disk import is_damaged, locked_folder
from dvcfleet.errors import FailedError
from dvcfleet.prefect_adapter.database import DATABASE, is_current, make_database
from dvcfleet.prefect_adapter.internals import PREFECT, one_transaction_at_a_time, server_app, wait_for_events
from dvcfleet.web_guard import Access, Guard, own_origins

START_LIMIT_S = 120.0
_NOTE = "dvcfleet: "  # prefix of the lines in the server's log that are for the user
_SETTINGS = {
    # Store events of task runs in groups.
    "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_BATCH_SIZE": "250",
    "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_FLUSH_INTERVAL": "1",
    # Disable run-time type checks of a store that is not used here: compiling them slows each start.
    "PY_KEY_VALUE_DISABLE_BEARTYPE": "true",
    # Of its log, the errors.
    "PREFECT_SERVER_LOGGING_LEVEL": "ERROR",
    "PREFECT_LOGGING_LEVEL": "ERROR",
    "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "ERROR",
}
# Only the services that store what a run reports: no schedules, and no data sent elsewhere.
_FOR_ONE_RUN = {
    "PREFECT_API_BLOCKS_REGISTER_ON_START": "false",
    # Otherwise every start imports what other installed packages register, Kubernetes' client for one.
    "PREFECT_SERVER_MEMOIZE_BLOCK_AUTO_REGISTRATION": "false",
    "PREFECT_SERVER_SERVICES_SCHEDULER_ENABLED": "false",
    "PREFECT_SERVER_SERVICES_LATE_RUNS_ENABLED": "false",
    "PREFECT_SERVER_SERVICES_CANCELLATION_CLEANUP_ENABLED": "false",
    "PREFECT_SERVER_SERVICES_PAUSE_EXPIRATIONS_ENABLED": "false",
    "PREFECT_SERVER_SERVICES_FOREMAN_ENABLED": "false",
    "PREFECT_SERVER_SERVICES_TRIGGERS_ENABLED": "false",
    # The recorder stores the task runs' states; events would store them a second time.
    "PREFECT_SERVER_SERVICES_EVENT_PERSISTER_ENABLED": "false",
    "PREFECT_SERVER_EVENTS_STREAM_OUT_ENABLED": "false",
}

# Store the holders of a concurrency limit's slots on disk: otherwise a slot would stay taken after a restart.
_FOR_SCHEDULES = {"PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE": "prefect.server.concurrency.lease_storage.filesystem"}


class PrefectServer:
    """A Prefect server as a child process, with its database under `home`.

    The constructor starts it in the background; call `wait` before use. It ends when it is stopped, or with this
    process. With `schedules` it also starts scheduled runs and runs automations, as an ordinary Prefect server does.
    `environment` connects a client to it: its address, and the secret that it asks for. While it is up, the secret is
    also in the file `secret`, for programs that this user starts.
    """

    def __init__(self, home: Path, page: bool = False, schedules: bool = False) -> None:
        home.mkdir(parents=True, exist_ok=True)
        self._home, self._log = home, home / "server.log"
        self._answers = False
        for_whom = _FOR_SCHEDULES if schedules else _FOR_ONE_RUN
        with socket.socket() as listener, self._log.open("wb") as log:
            listener.bind(("127.0.0.1", 0))
            listener.listen(128)
            port = listener.getsockname()[1]
            self.api = f"http://127.0.0.1:{port}/api"
            password = f"dvcfleet:{secrets.token_urlsafe(32)}"  # user and password, as HTTP's basic authentication has
            self.environment = {"PREFECT_API_URL": self.api, "PREFECT_API_AUTH_STRING": password}
            self.secret = _secret_file(home, port)
            self.secret.unlink(missing_ok=True)  # of a server that was killed
            with open(os.open(self.secret, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
                file.write(password)
            own_settings = {
                "PREFECT_HOME": str(home),
                "PREFECT_API_DATABASE_CONNECTION_URL": f"sqlite+aiosqlite:///{home / DATABASE}",
                "PREFECT_SERVER_API_AUTH_STRING": password,
                "PREFECT_SERVER_API_BASE_PATH": "/api",
                "PREFECT_SERVER_CORS_ALLOWED_ORIGINS": ",".join(own_origins(port)),
                "PREFECT_UI_API_URL": self.api,
                "PREFECT_UI_STATIC_DIRECTORY": str(home / "page"),
                "PREFECT_SERVER_UI_ENABLED": str(page).lower(),
            }
            self._process = subprocess.Popen(
                [sys.executable, "-m", "dvcfleet.prefect_adapter.server", str(listener.fileno())],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                cwd=Path(__file__).parents[2],
                env=os.environ | _SETTINGS | for_whom | self.environment | own_settings,
                pass_fds=[listener.fileno()],
            )

    def __enter__(self) -> "PrefectServer":
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def wait(self) -> str:
        """Return the API's address as soon as it answers; raise FailedError if it does not start, or has ended."""
        answered, self._answers = self._answers, answers(f"{self.api}/health", self._process)
        if self._answers:
            return self.api
        if answered:
            raise FailedError(f"the Prefect server has ended; see {self._log}, and start again")
        raise FailedError(f"the Prefect server did not start; see {self._log}; without {self._home} it starts afresh")

    def notes(self) -> list[str]:
        """Return the server's messages about internals that the installed Prefect lacks, once it answers."""
        lines = self._log.read_text(encoding="utf-8", errors="replace").splitlines()
        return [line.removeprefix(_NOTE) for line in lines if line.startswith(_NOTE)]

    def stop(self) -> None:
        """End the server and wait for it: cleanly if it was used, by a kill if it is still starting."""
        assert self._process.stdin
        self._process.stdin.close()
        if not self._answers:
            self._process.kill()
        try:
            self._process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self.secret.unlink(missing_ok=True)


def answers(address: str, server: subprocess.Popen[bytes]) -> bool:
    """Wait for a started server; tell whether it answers; raise FailedError where this machine cannot reach itself."""
    deadline = time.monotonic() + START_LIMIT_S
    while time.monotonic() < deadline and server.poll() is None:
        try:
            with urllib.request.urlopen(address, timeout=5):
                return True
        except (urllib.error.URLError, TimeoutError, ConnectionError) as error:
            if getattr(getattr(error, "reason", None), "errno", None) == errno.ENETUNREACH:
                advice = "enable the loopback interface (ip link set lo up)"
                raise FailedError(f"{address}: this machine's own network is unreachable; {advice}") from error
        time.sleep(0.05)
    return False


def _secret_file(home: Path, port: int) -> Path:
    return home / f"secret-{port}"


def main() -> None:
    """Serve on the given listening socket until standard input ends."""
    import gc
    import signal

    for sent_to_all in (signal.SIGINT, signal.SIGTERM):  # the run must still report how it ended
        signal.signal(sent_to_all, signal.SIG_IGN)
    home = Path(os.environ["PREFECT_HOME"])
    _prepare_database(home / DATABASE)
    # Imported modules live until exit: garbage collection would take a quarter of the start.
    gc.disable()
    PREFECT.report(lambda line: print(f"{_NOTE}{line}", flush=True))
    one_transaction_at_a_time()
    app = server_app()
    gc.freeze()
    gc.enable()
    listener = socket.socket(fileno=int(sys.argv[1]))
    secret = _secret_file(home, listener.getsockname()[1])
    _serve(Guard(Access(app, os.environ["PREFECT_SERVER_API_AUTH_STRING"])), listener)
    secret.unlink(missing_ok=True)  # here too: the run may have been killed


def _serve(app: Any, listener: socket.socket) -> None:
    import uvicorn

    class UninterruptedServer(uvicorn.Server):
        """Ends only when the run ends it: the run handles Ctrl-C."""

        @contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield

    config = uvicorn.Config(app, log_level="critical", access_log=False, timeout_graceful_shutdown=5)
    server = UninterruptedServer(config)

    def end_with_run() -> None:
        sys.stdin.buffer.read()
        wait_for_events()
        server.should_exit = True

    threading.Thread(target=end_with_run, daemon=True).start()
    server.run(sockets=[listener])


def _prepare_database(path: Path) -> None:
    """Make the database if there is none, or a damaged one; skip Prefect's check for migrations if it is current."""
    with locked_folder(path.parent):  # two servers that start at once would replace each other's
        if path.exists() and is_damaged(path):
            kept = path.with_name(f"{path.name}.damaged-{int(time.time())}")
            for suffix in ("-wal", "-shm"):
                path.with_name(path.name + suffix).unlink(missing_ok=True)
            path.rename(kept)
            said = f"{path} was damaged: Prefect creates a new one, and {kept.name} next to it is the old one"
            print(f"{_NOTE}{said}", flush=True)
        if not path.exists():
            make_database(path)
    if is_current(path):
        os.environ["PREFECT_SERVER_DATABASE_MIGRATE_ON_START"] = "false"


if __name__ == "__main__":
    main()
