"""Run the suites' stages by the very commands of their dvc.yaml, in folders of their own."""

import importlib
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import chdir, contextmanager
from pathlib import Path
from typing import Any

import grimp
import torch
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


@contextmanager
def stages_in(folder: Path) -> Iterator[None]:
    """Let stages' commands run in this process, in a folder of their own; all is as it was afterwards."""
    threads, environment = torch.get_num_threads(), dict(os.environ)
    try:
        with chdir(folder):
            yield
    finally:
        os.environ.clear()
        os.environ.update(environment)
        torch.use_deterministic_algorithms(False)
        torch.set_num_threads(threads)


def run_stage(folder: str, name: str, task: str) -> None:
    """Run a stage's command for a task in this process, and check that its outputs are there."""
    stage = stages_of(folder)[name]
    python, option, module, *arguments = shlex.split(stage["cmd"])
    assert (python, option) == ("python", "-m")
    os.environ["DVC_STAGE"] = f"examples/{folder}/dvc.yaml:{name}@{task}"
    importlib.import_module(f"{module}.__main__").main(arguments)
    for out in stage["outs"]:
        assert Path(out.replace("${item}", task)).exists()


def build_elsewhere(test: str, folder: Path) -> None:
    """Call `build` of a module of tests in another process, with another seed of Python's hashes.

    The order of sets must not be in a file.
    """
    code = f"from pathlib import Path; from tests.examples.{test} import build; build(Path({str(folder)!r}))"
    variables = {"PYTHONPATH": f"{REPOSITORY}:{EXAMPLES}", "PYTHONHASHSEED": "7"}
    subprocess.run([sys.executable, "-c", code], check=True, env=os.environ | variables, capture_output=True)


def code_of(suite: str, module: str, *others: str) -> set[str]:
    """Return the files of code that a suite's stage runs, of its own and of other suites, from `examples/`."""
    graph = grimp.build_graph("common", suite, *others, cache_dir=None)
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
