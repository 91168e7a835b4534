"""A repository that knows nothing of Merganser, with packages of the same names and an interpreter of its own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dvcfleet.process_settings import without_own
from tests import PYTHONPATH
from tests.dvcfleet.cluster import started
from tests.dvcfleet.toy import Make, Toy
from tests.support import forking, python

# Each stage prints which interpreter runs it, and imports the repository's own `flows` and `tasks`.
FILES = {
    "flows/__init__.py": "",
    "flows/words.py": "WORD = 'first'\n",
    "tasks/__init__.py": "",
    "tasks/stage.py": "from flows.words import WORD\n",
    "tasks/write.py": """
import pathlib, sys
from tasks.stage import WORD
ours = [name for name in sys.modules if name.partition(".")[0] in ("dvcfleet", "merganser")]
pathlib.Path(sys.argv[1]).write_text(f"{WORD} {sys.prefix} {ours}\\n")
""",
    "train.py": "import sys, flows.words; open(sys.argv[1], 'w').write(flows.words.WORD)\n",
    "source": "1",
    ".dvcignore": "__pycache__\n",
}
DVC_YAML = """
stages:
  warm: {cmd: python -m tasks.write warm.txt, deps: [source, flows, tasks], outs: [warm.txt]}
  cold: {cmd: python -m tasks.write cold.txt; true, deps: [source, flows, tasks], outs: [cold.txt]}
  top: {cmd: python -m train top.txt, deps: [source, warm.txt, train.py], outs: [top.txt]}
"""


def merganser(folder: Path, path: str) -> "subprocess.CompletedProcess[str]":
    """Run the command line from elsewhere, with its own interpreter by its full path and another PATH."""
    code = "import os, sys; sys.path[:0] = sys.argv.pop(1).split(os.pathsep); from flows.__main__ import start; start()"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {"PATH": path}
    return subprocess.run(
        [*python(), "-P", "-c", code, PYTHONPATH, "run", "--repo", str(folder)],
        cwd=folder.parent,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
def test_a_repository_with_packages_and_an_interpreter_of_its_own_runs_warm_and_cold(toy: Make, tmp_path: Path) -> None:
    foreign = toy(DVC_YAML, FILES)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    others = merganser(foreign.path, f"{tmp_path}/venv/bin{os.pathsep}{os.environ['PATH']}")
    assert others.returncode == 0, others.stdout + others.stderr
    assert foreign.read("warm.txt") == foreign.read("cold.txt") == f"first {tmp_path}/venv []\n"
    foreign.write("flows/words.py", "WORD = 'then'\n")
    ours = merganser(foreign.path, f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    assert ours.returncode == 0, ours.stdout + ours.stderr
    assert foreign.read("warm.txt") == foreign.read("cold.txt") == f"then {sys.prefix} []\n"
    assert foreign.read("top.txt") == "then"
    assert foreign.settled()


# What a command may see of how it was started, except what belongs to where its output goes.
SEEN = """
stages:
  a:
    cmd:
      - env | sort > env
      - umask > umask
      - ulimit -a | grep -v "pending signals" > limits
      - grep -E "^Sig(Blk|Ign|Cgt)|^CapEff|^NoNewPrivs" /proc/self/status > signals
      - ls /proc/self/fd > descriptors
      - nice > nice
      - python -c "import os, sys; print(sorted(os.environ.items()), sys.argv, sys.path[:1], sys.flags)" > python
    outs: [env, umask, limits, signals, descriptors, nice, python]
"""
SEEN_OUTS = ("env", "umask", "limits", "signals", "descriptors", "nice", "python")


@pytest.mark.parametrize("root", [pytest.param(None, marks=pytest.mark.drill), "/elsewhere"])
def test_a_stage_gets_the_environment_that_dvc_repro_gives(toy: Make, root: str | None) -> None:
    """Also where the run is itself the command of a stage of another repository."""
    foreign = toy(SEEN, {})
    environment = without_own(os.environ) | {
        "PYTHONPATH": PYTHONPATH,
        "CUDA_VISIBLE_DEVICES": "1",
        "A_NAME": "of theirs",
    }
    environment |= {"DVC_ROOT": root, "DVC_STAGE": "outer"} if root else {}
    seen = []
    for command in (["-m", "dvc", "repro", "--force"], ["-m", "merganser.flows", "run", "--force"]):
        subprocess.run(
            [sys.executable, *command],
            cwd=foreign.path,
            env=environment,
            stdin=subprocess.DEVNULL,
            check=True,
            umask=0o27,
        )
        seen.append({out: foreign.read(out) for out in SEEN_OUTS})
    assert seen[1] == seen[0]
    assert "DVC_STAGE=a\n" in seen[0]["env"]


# What `merganser serve` does before Prefect starts a scheduled run.
HANDED_DOWN = """
import os, sys
from dvcfleet.process_settings import hand_down
hand_down({"OF_THE_ENGINE": "a secret"})
os.execv(sys.executable, [sys.executable, "-m", "merganser.flows", "run"])
"""


def test_a_stage_gets_nothing_that_the_engine_hands_down_to_its_own_processes(toy: Make) -> None:
    foreign = toy("stages: {a: {cmd: env > env, outs: [env]}}", {})
    with forking():
        environment = without_own(os.environ) | {"PYTHONPATH": PYTHONPATH, "OF_THE_USER": "kept"}
        subprocess.run([*python(), "-c", HANDED_DOWN], cwd=foreign.path, env=environment, check=True)
    seen = foreign.read("env")
    assert "OF_THE_USER=kept" in seen
    assert "OF_THE_ENGINE" not in seen
    assert "DVCFLEET_OWN_VARIABLES" not in seen


# The project asks for modules to be imported once: one from outside, and one that is the repository's own.
PROJECT = """
from dvcfleet.project import Project
class Edited(Project):
    preload = ("xmlrpc.client", "tasks.work", "flows.words")
PROJECT = Edited()
"""
EDITED = """
stages:
  first:
    cmd: python -m tasks.first
    deps: [source]
    outs: [first.txt]
  second:
    cmd: python -m tasks.second
    deps: [first.txt, tasks/work.py]
    outs: [second.txt]
"""
EDITED_FILES = {
    "pyproject.toml": '[tool.dvcfleet]\nproject = "edited_project:PROJECT"\n',
    "tasks/__init__.py": "",
    # What the engine once read, and imported when a run began.
    "tasks/stage.py": 'PRELOAD = ("tasks.work",)\n',
    "tasks/work.py": "WORD = 'old'\n",
    # Somebody edits the second stage's module while the first stage runs.
    "tasks/first.py": """
import pathlib, time
time.sleep(1)
work = pathlib.Path("tasks/work.py")
work.write_text(work.read_text().replace("old", "newer"))
pathlib.Path("first.txt").write_text("1")
""",
    "tasks/second.py": """
import pathlib, sys
from tasks.work import WORD
pathlib.Path("second.txt").write_text(f"{WORD} {'xmlrpc.client' in sys.modules}")
""",
    "source": "1",
}


@pytest.fixture
def edited(toy: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Toy:
    """A repository in whose root a warm process can import what its project names."""
    repository = toy(EDITED, EDITED_FILES)
    (tmp_path / "project").mkdir()
    (tmp_path / "project/edited_project.py").write_text(PROJECT)
    places = [str(tmp_path / "project"), str(repository.path), PYTHONPATH]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(places))
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.syspath_prepend(places[0])
    monkeypatch.delitem(sys.modules, "edited_project", raising=False)
    monkeypatch.setattr("dvcfleet.services.FEW", 0)
    return repository


def test_a_module_edited_during_a_run_is_what_the_next_stage_runs(edited: Toy) -> None:
    code, text = edited.run(workers=1)
    assert code == 0, text
    assert edited.read("second.txt") == "newer True"
    assert edited.settled()


@pytest.mark.drill  # a cluster of its own, which finds its project where it starts
def test_a_cluster_that_outlives_runs_runs_the_code_that_is_there_now(edited: Toy, prefect_api: str) -> None:
    with started("dask", prefect_api) as cluster:
        for word in ("newer", "newest"):
            code, text = edited.run(runner="dask", address=cluster.address, workers=1)
            assert code == 0, text
            assert edited.read("second.txt") == f"{word} True"
            edited.write("tasks/work.py", "WORD = 'newest'\n")
    assert edited.settled()
