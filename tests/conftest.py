"""What all tests share: the order they run in, Ctrl-C, and the tiny comparison that was run once."""

import atexit
import gc
import importlib
import logging
import os
import shlex
import signal
import subprocess
from collections.abc import Generator, Iterator
from contextlib import suppress
from functools import partial
from glob import glob
from pathlib import Path
from typing import Any

import pytest

from tests.isolation import OWN_HOME
from tests.support import copy_repository, made_once, shared_prefect_server
from tests.warm import VARIABLE, Warm, python

TESTS = Path(__file__).parent
SAID = ".dvc/tmp/said.txt"
SLOW_FIRST = (
    *("drills", "flows", "test_pipeline.py", "dvcfleet", "tasks", "laws", "faults", "merging", "checkpoints", "linalg"),
    *("test_isolation.py", "models", "overlays", "command_line", "report", "inputs", "standalone", "measures"),
    *("examples", "evaluation", "benchmarks", "test_dvc_yaml.py"),
)


def pytest_configure(config: pytest.Config) -> None:
    """Let the terminal's signals act, which tests try: a shell that starts them in the background has them ignored.

    And let the many processes that tests start keep what they compiled, and threads that wait for others of their
    process sleep: spinning, they would take the processors from the tests beside them. What libraries log is not said
    among what a test has printed.
    """
    logging.getLogger().addHandler(logging.NullHandler())
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ["OMP_WAIT_POLICY"] = "passive"
    for number in (signal.SIGQUIT, signal.SIGHUP):  # the second one under nohup
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if is_worker(config):
        atexit.register(os._exit, 0)  # the first registered is called last: modules are not torn down


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(config: pytest.Config, specs: list[Any]) -> None:
    """Fork xdist's workers from one process that has imported the libraries."""
    warm = Warm(Path(os.environ[OWN_HOME]))
    config.add_cleanup(warm.stop)
    os.environ[VARIABLE] = warm.address
    for spec in specs:
        spec.python = shlex.join(python())


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Collect no garbage while all is imported, which takes a third of that time, nor later in what was.

    And later rarely: most objects live until a test ends, and a twelfth of a run's time would go into it.
    """
    gc.disable()
    try:
        if is_worker(session.config) and [Path(arg).absolute() for arg in session.config.args] == [TESTS]:
            import_in_turn(session.config)
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(20_000, 20, 20)
        gc.enable()


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Let the interpreter tear down at its end what it would tear down without `freeze`, but in xdist's workers.

    Those take six seconds for it, and their exit codes are not looked at.
    """
    if not is_worker(session.config):
        gc.unfreeze()


def import_in_turn(config: Any) -> None:
    """Import all tests, beginning where no other of xdist's workers does, to find the others compiled by these.

    In a new clone nothing is, and pytest's own compiling takes seconds.
    """
    files = [Path(name) for name in sorted(glob(f"{TESTS}/**/test_*.py", recursive=True))]  # through the link dvcfleet
    number, workers = int(config.workerinput["workerid"].removeprefix("gw")), config.workerinput["workercount"]
    first = len(files) * number // workers
    for file in (*files[first:], *files[:first]):
        name = ".".join(file.relative_to(TESTS.parent).with_suffix("").parts)
        with suppress(Exception, pytest.skip.Exception):  # pytest says it when it collects the file
            importlib.import_module(name)


def is_worker(config: pytest.Config) -> bool:
    """Tell whether this is a process to which xdist hands out tests."""
    return hasattr(config, "workerinput")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the files that take longest, so that no process is left with one at the end."""
    places = {name: place for place, name in enumerate(SLOW_FIRST)}
    items.sort(key=lambda item: places.get(item.path.relative_to(TESTS).parts[0], len(places)))


@pytest.fixture(scope="session")
def prefect_api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A real Prefect server for all tests that are not about the server's own life; the environment has its secret."""
    from prefect import settings as known
    from prefect.context import get_settings_context

    with shared_prefect_server(tmp_path_factory) as environment, pytest.MonkeyPatch.context() as patch:
        patch.setenv("PREFECT_API_AUTH_STRING", environment["PREFECT_API_AUTH_STRING"])
        with known.temporary_settings({getattr(known, name): value for name, value in environment.items()}):
            # For all threads, as in a run: one of Prefect's own would start another server, until this process ends.
            patch.setattr("prefect.context.GLOBAL_SETTINGS_CONTEXT", get_settings_context())
            yield environment["PREFECT_API_URL"]


@pytest.fixture(scope="session")
def tiny_run(tmp_path_factory: pytest.TempPathFactory, prefect_api: str) -> Path:
    """Give a committed repository whose tiny comparison has been run by the flow; no test may change it."""
    return made_once(tmp_path_factory, "tiny", partial(_run_tiny, prefect_api))


@pytest.fixture
def tiny_fresh(tmp_path_factory: pytest.TempPathFactory, tmp_path: Path) -> Path:
    """Give a copy of the tiny comparison's repository in which nothing has run."""
    from tests.tiny import make_repository

    return copy_repository(made_once(tmp_path_factory, "fresh", make_repository), tmp_path / "fresh")


@pytest.fixture
def tiny_said(tiny_run: Path) -> str:
    """Give what the run of the tiny comparison printed."""
    return (tiny_run / SAID).read_text()


@pytest.fixture
def tiny_copy(tiny_run: Path, tmp_path: Path) -> Path:
    """Give a copy of it to change, whose MLflow store has its artifacts at the copy's path."""
    from tests.tiny import move_artifacts

    return move_artifacts(copy_repository(tiny_run, tmp_path / "copy"))


def _run_tiny(prefect_api: str, folder: Path) -> None:
    # Not at the top: the process that hands out the tests imports this file too, and none of these libraries.
    from tests.tiny import CODE, make_repository, merganser

    make_repository(folder)
    git = ["git", "-C", str(folder), "-c", "user.name=T", "-c", "user.email=t@example.org"]
    subprocess.run([*git, "add", *CODE, "params.yaml"], check=True)
    subprocess.run([*git, "commit", "-qm", "all"], check=True)
    said = merganser(folder, "run", "--workers", "2", PREFECT_API_URL=prefect_api).stdout
    (folder / SAID).write_text(said)
