"""A runner of another package, installed with an entry point, is chosen, checked and opened as the engine's own are."""

import os
from pathlib import Path

import pytest

from dvcfleet.command_line import complete_runner
from dvcfleet.errors import UserError
from dvcfleet.placement import choose_placement
from dvcfleet.runners import load_runner, own_names, runner_names
from tests.dvcfleet.test_command_line import dvcfleet
from tests.dvcfleet.toy import Make
from tests.support import forking

# What an installer leaves of a package beside its modules.
METADATA = {
    "METADATA": "Metadata-Version: 2.1\nName: one-by-one\nVersion: 1.0\n",
    "entry_points.txt": """
[dvcfleet.runners]
one_by_one = one_by_one.runner
broken = one_by_one.missing
bare = one_by_one
""",
}
RUNNER = '''
"""Start each stage from a Python process of its own, one at a time."""

from contextlib import contextmanager

from dvcfleet.runners import LocalRunner

TAKES_ADDRESS = False


@contextmanager
def open_runner(asked):
    from one_by_one.pool import OneByOne

    yield LocalRunner(OneByOne(), threads=1)
'''
POOL = """
import os

from prefect.task_runners import ProcessPoolTaskRunner


class OneByOne(ProcessPoolTaskRunner):
    def __init__(self, max_workers=1):
        super().__init__(max_workers=1, initializer=note)

    def submit(self, *task, **options):
        self.__exit__(None, None, None)
        self.__enter__()
        return super().submit(*task, **options)


def note():
    with open(os.environ["ONE_BY_ONE"], "a") as file:
        file.write(f"{os.getpid()}\\n")
"""


# Two stages, for each of which a process imports all.
PAIR = """
stages:
  cut: {cmd: head -c 3 source > cut.txt, deps: [source], outs: [cut.txt]}
  end: {cmd: rev cut.txt > end.txt, deps: [cut.txt], outs: [end.txt]}
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the package is installed."""
    site = tmp_path_factory.mktemp("site")
    modules = {"__init__.py": "", "runner.py": RUNNER, "pool.py": POOL}
    for folder, files in {"one_by_one": modules, "one_by_one-1.0.dist-info": METADATA}.items():
        (site / folder).mkdir()
        for name, text in files.items():
            (site / folder / name).write_text(text)
    return site


@pytest.mark.slow
def test_an_installed_runner_runs_a_repository(
    toy: Make, site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, pair = toy(PAIR, {"source": "abcdef"}, "here"), toy(PAIR, {"source": "abcdef"})
    assert here.run()[0] == 0
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(site), *filter(None, [os.environ.get("PYTHONPATH")])]))
    monkeypatch.setenv("ONE_BY_ONE", str(tmp_path / "pids"))
    with forking():
        assert "2 done" in dvcfleet(pair.path, "run", "--runner", "one_by_one")
    assert len(set((tmp_path / "pids").read_text().split())) == 2  # a process a stage
    assert pair.read("dvc.lock") == here.read("dvc.lock")
    assert pair.settled()
    pair.write("profiles.yaml", "mine: {runner: one_by_one}")
    assert "nothing to do" in dvcfleet(pair.path, "run", "--profile", "mine")


def test_an_installed_runner_is_listed_and_checked_as_the_others(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "one_by_one" not in runner_names()
    monkeypatch.syspath_prepend(site)
    assert runner_names() == [*own_names(), "bare", "broken", "one_by_one"]
    assert complete_runner("one") == ["one_by_one"]
    assert choose_placement(Path("nowhere"), None, runner="one_by_one").runner == "one_by_one"
    with pytest.raises(UserError, match=r"no runner 'pigeon'; there are dask, .* one_by_one$"):
        load_runner("pigeon")
    with pytest.raises(UserError, match=r"^runner broken: one_by_one\.missing of one-by-one cannot be loaded"):
        load_runner("broken")
    (site / "one_by_one/missing.py").write_text("raise SystemExit(0)")
    with pytest.raises(UserError, match=r"^runner broken: one_by_one\.missing of one-by-one cannot be loaded \(0\)"):
        load_runner("broken")
    (site / "one_by_one/missing.py").unlink()
    with pytest.raises(UserError, match=r"^runner bare: one_by_one of one-by-one should have TAKES_ADDRESS"):
        load_runner("bare")


def test_an_address_is_for_runners_that_take_one(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(site)
    with pytest.raises(UserError, match=r"^--address is for --runner dask and ray; --runner one_by_one takes none"):
        choose_placement(Path("nowhere"), None, runner="one_by_one", address="a:1")


@pytest.mark.parametrize("name", own_names())
def test_the_engines_own_runners_have_what_opens_them(name: str) -> None:
    opened = load_runner(name)
    assert opened.TAKES_ADDRESS is (name in ("ray", "dask"))
    assert callable(opened.open_runner)
