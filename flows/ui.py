"""Serve the pages of Prefect and MLflow on loopback."""

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import FrameType

from dvcfleet.prefect_adapter.server import Server
from dvcfleet.repository import opened, state_folder
from dvcfleet.secrets import masked

_START_LIMIT_S = 120.0


def serve(repo: Path) -> None:
    """Start both pages for the repository, print their addresses, and stop both on Ctrl-C or SIGTERM.

    If PREFECT_API_URL or a remote MLFLOW_TRACKING_URI is set, only its address is printed.
    """
    with opened(repo) as dvc_repo:
        root, home = Path(dvc_repo.root_dir), state_folder(dvc_repo) / "prefect"
    with _stopped_by_signal(), ExitStack() as stack:
        prefect, mlflow = stack.enter_context(_prefect_page(home)), stack.enter_context(_mlflow_page(root))
        print(f"Prefect  {masked(prefect)}\nMLflow   {masked(mlflow)}\nCtrl-C stops both.", flush=True)
        while True:
            signal.pause()


@contextmanager
def _stopped_by_signal() -> Iterator[None]:
    def interrupt(_signal: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        with suppress(KeyboardInterrupt):
            yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _prefect_page(home: Path) -> Iterator[str]:
    if elsewhere := os.environ.get("PREFECT_API_URL"):
        yield elsewhere.removesuffix("/api")
        return
    server = Server(home, page=True)
    try:
        server.wait()
        yield server.address
    finally:
        server.stop()


@contextmanager
def _mlflow_page(root: Path) -> Iterator[str]:
    store = os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{root}/mlflow.db"
    if store.startswith(("http://", "https://")):
        yield store
        return
    port = _free_port()
    command = ["ui", "--backend-store-uri", store, "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    # In its own process group, so that its workers can be ended cleanly with it.
    process = subprocess.Popen(
        [sys.executable, "-m", "mlflow", *command],
        cwd=root,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        address = f"http://127.0.0.1:{port}"
        _wait_for(address, process)
        yield address
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _wait_for(address: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + _START_LIMIT_S
    while time.monotonic() < deadline and process.poll() is None:
        with suppress(urllib.error.URLError, ConnectionError, TimeoutError), urllib.request.urlopen(address, timeout=5):
            return
        time.sleep(0.2)
    raise RuntimeError("the MLflow page did not start; `python -m mlflow ui` says why")
