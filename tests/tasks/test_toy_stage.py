"""A stage is added in dvc.yaml, in its module and in the table of stages, and nowhere else in the code."""

import json
import shutil
import subprocess
from pathlib import Path

from tests.support import python
from tests.tiny import ROOT, environment, merganser

STAGE = """
  count:
    foreach: ${tasks}
    do:
      desc: count the values of one task's source
      cmd: python -m merganser.tasks.count @
      deps: [data/code/count.txt, "hub/${key}"]
      outs: ["data/counts/${key}.json"]
"""
MODULE = '''
"""Count the values of one task's source."""

from math import prod
from pathlib import Path

from merganser.checkpoints.reading import open_checkpoint
from merganser.config.params import Params
from merganser.outputs import write_json
from merganser.tasks.stage import run_main, stage
from merganser.tasks.stages import COUNTS


@stage("tasks")
def main(params: Params, task: str) -> None:
    """Count those of the task named on the command line."""
    specs = open_checkpoint(Path("hub") / task).specs.values()
    write_json(COUNTS / f"{task}.json", {"values": sum(prod(spec.shape) for spec in specs)})


if __name__ == "__main__":
    run_main(main)
'''
PATH = 'COUNTS = Path("data/counts")\n'
ROW = '    "count": StageKind((COUNTS,), size=lambda known, name: 20.0),\n'


def insert(file: Path, text: str, before: str) -> None:
    content = file.read_text()
    assert content.count(before) == 1
    file.write_text(content.replace(before, text + before))


def test_a_stage_is_a_module_a_place_in_dvc_yaml_and_a_row(tiny_fresh: Path, prefect_api: str) -> None:
    folder = tiny_fresh
    insert(folder / "dvc.yaml", STAGE, "\nplots:")
    insert(folder / "tasks/stages.py", PATH, "DATA = ")
    insert(folder / "tasks/stages.py", ROW, '    "publish": ')
    (folder / "tasks/count.py").write_text(MODULE.lstrip())
    planned = merganser(folder, "run", "--dry-run", "count@dark").stdout
    assert "count@dark: stale" in planned
    assert "not known, and not counted: the disk of 1 stage (code)" in planned
    merganser(folder, "run", "count@dark", PREFECT_API_URL=prefect_api)
    assert json.loads((folder / "data/counts/dark.json").read_text())["values"] > 0
    # The tests of the table hold it to the stage, with nothing added to them.
    shutil.copytree(ROOT / "tests", folder / "tests", ignore=shutil.ignore_patterns("*.pyc.*"))  # being written
    shutil.copyfile(ROOT / "profiles.yaml", folder / "profiles.yaml")
    command = [
        *python(),
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--noconftest",
        "tests/tasks/test_stages.py",
    ]
    subprocess.run(command, cwd=folder, env=environment(), check=True)
