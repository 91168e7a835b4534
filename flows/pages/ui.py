"""Serve the start page, and the pages of Prefect and MLflow, on loopback."""

import os
import signal
import socket
import subprocess
import sys
import webbrowser
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from http import HTTPStatus
from pathlib import Path

import httpx

import dvcfleet
from dvcfleet.errors import FailedError
from dvcfleet.guarded_uvicorn import NAME as GUARDED_PROTOCOL
from dvcfleet.prefect_adapter.server import START_LIMIT_S, PrefectServer, answers
from dvcfleet.process_settings import Stop, hand_down
from dvcfleet.repository import opened, state_folder
from dvcfleet.terminal.secrets import masked
from merganser.tasks.tracking import follow_artifacts

_ENDING = (signal.SIGTERM, signal.SIGHUP)  # as when its terminal is closed


def serve_pages(repo: Path, port: int, browser: bool) -> None:
    """Start the pages of a repository, print their addresses, and stop all of them on Ctrl-C, SIGTERM or SIGHUP.

    If `port` is in use, the start page takes a free one. If PREFECT_API_URL or a remote MLFLOW_TRACKING_URI is set,
    the start page links there. `browser` opens the start page.
    """
    with opened(repo) as dvc_repo:
        root, home = Path(dvc_repo.root_dir), state_folder(dvc_repo) / "prefect"
    with suppress(KeyboardInterrupt), Stop().on_signals(*_ENDING), ExitStack() as stack:
        listener = stack.enter_context(_listener(port))
        begun = {
            "Prefect": stack.enter_context(prefect_page(home)),  # both start at once, then each is waited for
            "MLflow": stack.enter_context(_mlflow_page(root)),
        }
        services = {name: masked(wait()) for name, wait in begun.items()}
        address = f"http://127.0.0.1:{listener.getsockname()[1]}"
        for name, served in {"Start": address, **services}.items():
            print(f"{name:8} {served}")
        print("Ctrl-C stops all.", flush=True)
        if browser:
            webbrowser.open(address)
        _serve_start_page(root, services, listener)


def has_browser() -> bool:
    """Tell whether a browser would open a window: on a terminal of a desktop."""
    return sys.stdout.isatty() and bool({"DISPLAY", "WAYLAND_DISPLAY"} & set(os.environ))


def _serve_start_page(root: Path, services: dict[str, str], listener: socket.socket) -> None:
    import uvicorn

    from merganser.flows.pages.start_page import start_page

    config = uvicorn.Config(
        start_page(root, services), log_level="warning", access_log=False, timeout_graceful_shutdown=1
    )
    server = uvicorn.Server(config)
    # As uvicorn does for SIGINT and SIGTERM: an exception might be raised inside a request, and end that alone.
    signal.signal(signal.SIGHUP, server.handle_exit)
    server.run(sockets=[listener])


@contextmanager
def _listener(port: int) -> Iterator[socket.socket]:
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("127.0.0.1", port))
        except OSError as error:
            print(f"port {port}: {error.strerror}; the start page uses a free one")
            listener.bind(("127.0.0.1", 0))
        listener.listen()  # what comes before the page is served waits for it
        yield listener


@contextmanager
def prefect_page(home: Path, *, schedules: bool = False) -> Iterator[Callable[[], str]]:
    """Start a Prefect server, unless PREFECT_API_URL is set; yield a function that waits for its address.

    `schedules`: it starts scheduled runs, and this process and its children connect to it.
    """
    if elsewhere := os.environ.get("PREFECT_API_URL"):
        yield lambda: elsewhere.removesuffix("/api")
        return
    with PrefectServer(home, page=True, schedules=schedules) as server:
        if schedules:
            hand_down(server.environment)  # before Prefect is imported
        yield lambda: server.wait().removesuffix("/api")


@contextmanager
def _mlflow_page(root: Path) -> Iterator[Callable[[], str]]:
    store = os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{root}/mlflow.db"
    if store.startswith(("http://", "https://")):
        yield lambda: store
        return
    follow_artifacts(root)
    with _listener(0) as probe:
        port = probe.getsockname()[1]
    command = ["ui", "--backend-store-uri", store, "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    # This package is found also where it is not installed.
    packages = (str(Path(dvcfleet.__file__).parents[1]), os.environ.get("PYTHONPATH"))
    # In its own process group, so that its workers can be ended cleanly with it.
    process = subprocess.Popen(
        [sys.executable, "-m", "mlflow", *command],
        cwd=root,
        env=os.environ | {"UVICORN_HTTP": GUARDED_PROTOCOL, "PYTHONPATH": os.pathsep.join(filter(None, packages))},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield lambda: _answering(f"http://127.0.0.1:{port}", process)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        process.wait()


def _answering(address: str, process: subprocess.Popen[bytes]) -> str:
    if not answers(address, process):
        raise FailedError("the MLflow page did not start; `python -m mlflow ui` says why")
    foreign = httpx.get(address, headers={"Origin": "http://elsewhere.example"}, timeout=START_LIMIT_S)
    if foreign.status_code != HTTPStatus.FORBIDDEN:
        raise FailedError(
            "the installed MLflow starts its page by another server than uvicorn, and pages of others could use it"
        )
    return address
