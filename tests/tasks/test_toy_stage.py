"""A stage is added in dvc.yaml, in its module and in the table of stages, and nowhere else in the code."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

from tests.tiny import ROOT, environment, make_repository, merganser

STAGE = """
  count:
    foreach: ${tasks}
    do:
      desc: count the values of one task's deltas
      cmd: python -m tasks.count @
      deps: [data/code/count.txt, "data/deltas/${key}.safetensors"]
      outs: ["data/counts/${key}.json"]
"""
MODULE = '''
"""Count the values of one task's deltas."""

from math import prod

from merganser.inputs.deltas import DeltaFile
from merganser.outputs import write_json
from tasks.stage import only_name, run
from tasks.stages import COUNTS, DELTAS


def main(argv: list[str]) -> None:
    """Count those of the task named on the command line."""
    task = only_name(argv, "count")
    deltas = DeltaFile(DELTAS / f"{task}.safetensors")
    write_json(COUNTS / f"{task}.json", {"values": sum(prod(deltas.shape(name)) for name in deltas.kinds)})


if __name__ == "__main__":
    run(main)
'''
PATH = 'COUNTS = Path("data/counts")\n'
ROW = '    "count": Stage((COUNTS,), size=lambda known, name: 20.0),\n'


def insert(file: Path, text: str, before: str) -> None:
    content = file.read_text()
    assert content.count(before) == 1
    file.write_text(content.replace(before, text + before))


def test_a_stage_is_a_module_a_place_in_dvc_yaml_and_a_row(tmp_path: Path, prefect_api: str) -> None:
    folder = make_repository(tmp_path / "tiny")
    insert(folder / "dvc.yaml", STAGE, "\nplots:")
    insert(folder / "tasks/stages.py", PATH, "DATA = ")
    insert(folder / "tasks/stages.py", ROW, '    "publish": ')
    (folder / "tasks/count.py").write_text(MODULE.lstrip())
    planned = merganser(folder, "run", "--dry-run", "count@dark").stdout
    assert "count@dark: stale" in planned
    assert "not known, and not counted: the disk of 1 stages (code)" in planned
    merganser(folder, "run", "count@dark", PREFECT_API_URL=prefect_api)
    assert json.loads((folder / "data/counts/dark.json").read_text())["values"] > 0
    # The tests of the table hold it to the stage, with nothing added to them.
    shutil.copytree(ROOT / "tests", folder / "tests", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copyfile(ROOT / "profiles.yaml", folder / "profiles.yaml")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--noconftest",
        "tests/tasks/test_stages.py",
    ]
    subprocess.run(command, cwd=folder, env=environment(), check=True)
