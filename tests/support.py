"""What tests of all rooms use: docs/testing.md says when.

`each`: many values in one test. `steady`: hypothesis without chance. `made_once`, `copy_repository`: what many tests
begin with. `python`, `start`, `forking`: commands whose own start is not what the test is about. `wait_for`,
`wait_until`: other processes.
"""

import inspect
import json
import multiprocessing.spawn
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest
from filelock import FileLock

from dvcfleet.prefect_adapter.server import PrefectServer
from tests.warm import Fork, program, python, start

if TYPE_CHECKING:
    from hypothesis import settings

__all__ = [
    "LIMIT_S",
    "Fork",
    "copy_repository",
    "each",
    "forking",
    "made_once",
    "python",
    "shared_folder",
    "shared_prefect_server",
    "start",
    "steady",
    "wait_for",
    "wait_until",
]

Test = Callable[..., None]


def each(name: str, values: Iterable[Any]) -> Callable[[Test], Test]:
    """Give a test each value in turn, as an argument of this name; a failure names the value.

    As `pytest.mark.parametrize` does, but that all is one test: what a test is given besides stays the same.
    """
    listed = list(values)
    assert listed, f"no {name} to try"

    def loops(test: Test) -> Test:
        @wraps(test)
        def tried(**given: Any) -> None:
            for value in listed:
                try:
                    test(**given, **{name: value})
                except BaseException as failure:
                    failure.add_note(f"{name} = {value}")
                    raise

        signature = inspect.signature(test)
        others = [parameter for key, parameter in signature.parameters.items() if key != name]
        tried.__signature__ = signature.replace(parameters=others)  # type: ignore[attr-defined]
        return tried

    return loops


def steady(examples: int) -> "settings":
    """Return the settings of a test of so many examples, which are the same in every run, however long each takes."""
    from hypothesis import HealthCheck, settings

    return settings(
        max_examples=examples,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
    )


LIMIT_S = 240.0  # long enough for a busy machine: what is waited for takes seconds


def wait_for(file: Path, process: "subprocess.Popen[Any] | Fork") -> None:
    """Wait until a process has written a file; raise AssertionError as soon as it has ended without."""
    wait_until(lambda: file.exists() or process.poll() is not None)
    streams = () if isinstance(process, Fork) else (process.stdout, process.stderr)
    said = [stream.read() for stream in streams if stream and not file.exists()]
    assert file.exists(), f"exit code {process.returncode}: {said}"


def wait_until(holds: Callable[[], object], limit_s: float = LIMIT_S) -> None:
    """Wait until something holds; raise AssertionError if it does not within some seconds."""
    deadline = time.monotonic() + limit_s
    while not holds():
        assert time.monotonic() < deadline, f"did not come to hold within {limit_s:g} s"
        time.sleep(0.05)


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
