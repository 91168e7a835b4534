"""Run all stages of the comparisons in some folders, one after the other: `python run.py FOLDER ... [--only STAGE]`.

A program by itself, which imports the code that PYTHONPATH names first, of whatever version; each folder has the same.
Each stage is a process forked from one that has all modules loaded. What it reads and writes, and its exit code, go
to `stages.json` in the folder.
"""

import gc
import importlib
import json
import os
import pkgutil
import runpy
import shlex
import sys
import traceback
from pathlib import Path
from typing import Any

LOADED = ("torch", "transformers", "open_clip", "datasets", "scipy.linalg", "peft", "matplotlib.pyplot", "mlflow")
FOUND, SKIPPED = Path("stages.json"), Path("skipped.json")


def main(arguments: list[str]) -> None:
    """Run the comparisons; `--only`: one stage of each."""
    folders, _, only = " ".join(arguments).partition(" --only ")
    for library in (*LOADED, *_modules("merganser")):
        importlib.import_module(library)
    gc.disable()  # its marks would copy the memory that the stages' processes share
    gc.freeze()
    for folder in folders.split():
        os.chdir(folder)
        compare(only)


def compare(only: str) -> None:
    """Run the current folder's stages in DVC's order, or one; note their dependencies and outputs."""
    from dvc.repo import Repo

    from dvcfleet.dvc_adapter.stages import varying

    with Repo() as repo:
        own = (stage for stage in reversed([*_order(repo.index.graph)]) if stage.relpath == "dvc.yaml")
        skipped = json.loads(SKIPPED.read_text())
        stages = {each.addressing: each for each in own if each.addressing.partition("@")[0] not in skipped}
        noted = {name: described(stage, varying(stage)) for name, stage in stages.items()}
        commands = {name: stage.cmd for name, stage in stages.items()}
    for name in [only] if only else stages:
        noted[name]["exit_code"] = run(name, commands[name])
        print(f"{Path.cwd().name}: {name}: {noted[name]['exit_code']}", flush=True)
    FOUND.write_text(json.dumps(noted, indent=1))


def _modules(package: str) -> list[str]:
    """List the library's modules, none of which does anything when it is imported."""
    top = importlib.import_module(package).__path__
    return [found.name for found in pkgutil.walk_packages(top, f"{package}.") if "__main__" not in found.name]


def _order(graph: Any) -> Any:
    import networkx

    return networkx.topological_sort(graph)  # an edge leads from a stage to what it needs


def described(stage: Any, varies: dict[str, Any]) -> dict[str, Any]:
    """Return what a stage reads and writes, and which outputs vary from run to run, wholly or by some keys."""
    outs = {out.def_path: varies.get(out.def_path, []) for out in stage.outs}
    return {"deps": [dep.def_path for dep in stage.deps if dep.def_path], "outs": outs}


def run(name: str, commands: str | list[str]) -> int:
    """Run a stage's commands in a process of their own; return the exit code."""
    os.environ["DVC_STAGE"] = name
    for command in [commands] if isinstance(commands, str) else commands:
        _, _, module, *arguments = shlex.split(command)
        if child := os.fork():
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            if code:
                return code
        else:
            os._exit(_in_child(module, arguments))
    return 0


def _in_child(module: str, arguments: list[str]) -> int:
    sys.argv = [module, *arguments]
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as left:
        print(f"{module}: {left.code}", file=sys.stderr, flush=True)
        return left.code if isinstance(left.code, int) else 1
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


if __name__ == "__main__":
    main(sys.argv[1:])
