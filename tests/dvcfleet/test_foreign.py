"""A repository that knows nothing of Merganser, with packages of the same names and an interpreter of its own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.dvcfleet.cluster import ROOT
from tests.dvcfleet.toy import Make, Toy

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
    code = "import sys; sys.path.insert(0, sys.argv.pop(1)); from flows.__main__ import start; start()"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {"PATH": path}
    return subprocess.run(
        [sys.executable, "-P", "-c", code, str(ROOT), "run", "--repo", str(folder)],
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


def test_a_module_edited_during_a_run_is_what_the_next_stage_runs(edited: Toy) -> None:
    code, text = edited.run(workers=1)
    assert code == 0, text
    assert edited.read("second.txt") == "newer True"
    assert edited.settled()
