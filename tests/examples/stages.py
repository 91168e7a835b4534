"""Run the suites' stages by the very commands of their dvc.yaml, in folders of their own."""

import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import grimp
import yaml

REPOSITORY = Path(__file__).resolve().parents[2]
EXAMPLES = REPOSITORY / "examples"


def stages_of(folder: str) -> dict[str, dict[str, Any]]:
    """Read the stages of a folder's dvc.yaml; of those that are one per task, what each does."""
    document = yaml.safe_load((EXAMPLES / folder / "dvc.yaml").read_text())
    return {name: stage.get("do", stage) for name, stage in document["stages"].items()}


def make_folder(folder: Path, suite: str, params: dict[str, Any]) -> Path:
    """Make what stands for `examples/`: it holds the suite's params.yaml alone."""
    (folder / suite).mkdir(parents=True)
    (folder / suite / "params.yaml").write_text(yaml.safe_dump(params))
    return folder


def run_stage(folder: Path, suite: str, name: str, task: str) -> None:
    """Run a stage's command for a task, and check that its outputs are there."""
    stage = stages_of(suite)[name]
    variables = {
        "DVC_STAGE": f"examples/{suite}/dvc.yaml:{name}@{task}",
        "PYTHONPATH": str(EXAMPLES),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    subprocess.run(shlex.split(stage["cmd"]), check=True, cwd=folder, env=os.environ | variables)
    for out in stage["outs"]:
        assert (folder / out.replace("${item}", task)).exists()


def code_of(suite: str, module: str) -> set[str]:
    """Return the files of code that a suite's stage runs, from `examples/`."""
    graph = grimp.build_graph("common", suite, cache_dir=None)
    modules = {module, f"{suite}.__main__", f"{suite}.settings"}
    reached = modules.union(*(graph.find_upstream_modules(each) for each in (module, f"{suite}.settings")))
    reached |= {"common.stages"}
    paths = {each.replace(".", "/") + ".py" for each in reached}
    return {path for path in paths if (EXAMPLES / path).is_file() and not path.startswith(f"{suite}/tasks")}


def declared_code(folder: str, name: str) -> set[str]:
    """Return the files of code that a stage's dvc.yaml names, without the folder of tasks."""
    tasks = f"{Path(folder).parts[0]}/tasks"
    deps = stages_of(folder)[name]["deps"]
    assert tasks in deps
    return {path for path in deps if path.endswith(".py")}


def contents(folder: Path) -> dict[str, bytes]:
    """Return the bytes of all files in a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def differing(first: Path, second: Path) -> list[str]:
    """Return the names of files that are in one of two folders only, or differ."""
    one, other = contents(first), contents(second)
    return sorted(name for name in one.keys() | other.keys() if one.get(name) != other.get(name))
