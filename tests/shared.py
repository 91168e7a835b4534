"""What the tests of a session make once and share, whichever of its processes they run in."""

import json
import multiprocessing.spawn
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from filelock import FileLock

from dvcfleet.prefect_adapter.server import PrefectServer
from tests.warm import program


def shared_folder(factory: pytest.TempPathFactory) -> Path:
    """Return a folder that all processes of this session of tests have in common."""
    base = factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "shared"
    folder.mkdir(exist_ok=True)
    return folder


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """Have the first process that asks make a folder, which no test may change; return it."""
    folder = shared_folder(factory) / name
    with FileLock(f"{folder}.lock"):
        if not folder.exists():
            unfinished = folder.with_name(f"{name}-{os.getpid()}")  # left behind if making it fails
            make(unfinished)
            unfinished.rename(folder)
    return folder


def copy_repository(source: Path, target: Path) -> Path:
    """Copy a repository with its links, so that the workspace and DVC's cache stay one file each; return the copy."""
    subprocess.run(["cp", "-a", str(source), str(target)], check=True)
    return target


@contextmanager
def forking() -> Iterator[None]:
    """Let what this process starts by `sys.executable`, as `python`, or in a pool be forked: see tests/warm.py."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "executable", program())
        patch.setattr(multiprocessing.spawn, "_python_exe", os.fsencode(program()))
        patch.setenv("PATH", f"{Path(program()).parent}{os.pathsep}{os.environ['PATH']}")
        yield


@contextmanager
def shared_prefect_server(factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Give the address and the secret of one Prefect server for all processes, as variables.

    The first process that asks starts it, and waits for the others.
    """
    folder = shared_folder(factory)
    lock, address, users = FileLock(folder / "prefect.lock"), folder / "prefect.json", folder / "prefect-users"
    me, server = users / str(os.getpid()), None
    with lock:
        users.mkdir(exist_ok=True)
        me.touch()
        if not address.exists():
            with forking():
                server = PrefectServer(folder / f"prefect-{os.getpid()}")
            server.wait()
            address.write_text(json.dumps(server.environment))
        environment = json.loads(address.read_text())
    try:
        yield environment
    finally:
        me.unlink()
        if server:
            _stop_when_unused(server, lock, address, users)


def _stop_when_unused(server: PrefectServer, lock: FileLock, address: Path, users: Path) -> None:
    while True:
        with lock:
            if not any(psutil.pid_exists(int(user.name)) for user in users.iterdir()):
                address.unlink()  # who comes later starts another
                server.stop()
                return
        time.sleep(0.2)
