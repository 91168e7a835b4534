"""The table of stages agrees with dvc.yaml on what each writes, with the stages' own code on what computes where."""

import ast
import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import yaml

from merganser.models import usable_device
from merganser.tasks.stages import STAGES
from tests.tiny import ROOT

Defined = ast.FunctionDef | ast.ClassDef
DVC_YAML = yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"]
COMMANDS = {name: str(each.get("do", each)["cmd"]) for name, each in DVC_YAML.items()}
MODULES = {name: re.findall(r"python -m (merganser\.tasks\.\w+)", command) for name, command in COMMANDS.items()}


@cache
def parsed(module: str) -> tuple[dict[str, Defined], dict[str, tuple[str, str]]]:
    """Return what a module defines by name, and where the names come from that it imports."""
    tree = ast.parse((ROOT / f"{module.replace('.', '/')}.py").read_text())
    own = {node.name: node for node in tree.body if isinstance(node, Defined)}
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module]
    taken = {alias.asname or alias.name: (str(node.module), alias.name) for node in imports for alias in node.names}
    return own, taken


def opened(module: str, name: str, seen: set[tuple[str, str]]) -> Iterator[str]:
    """Give the places in params.yaml of the devices that a function opens, by all that it names in tasks/."""
    own, taken = parsed(module)
    if (module, name) in seen or name not in own:
        return
    seen.add((module, name))
    yield from map(place_of, calls(own[name]))
    for node in ast.walk(own[name]):
        if isinstance(node, ast.Name):
            source, original = taken.get(node.id, (module, node.id))
            yield from opened(source, original, seen) if source.startswith("merganser.tasks.") else ()


def calls(tree: ast.AST) -> Iterator[ast.Call]:
    """Give the calls of what opens a device."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == usable_device.__name__:
            yield node


def place_of(call: ast.Call) -> str:
    return str(ast.literal_eval(call.args[1]))


def opened_by(modules: Iterable[str]) -> set[str]:
    return {place for module in modules for place in opened(module, "main", set())}


def test_each_stage_of_dvc_yaml_has_its_row() -> None:
    assert set(STAGES) == set(MODULES)


def test_the_table_names_the_files_and_folders_that_stages_write() -> None:
    for name, stage in DVC_YAML.items():
        about = stage.get("do", stage)
        outs = [*about.get("outs", ()), *about.get("metrics", ())]
        paths = [path for out in outs for path in (out if isinstance(out, dict) else [out])]
        assert {path.partition("/${")[0] for path in paths} == set(map(str, STAGES[name].writes)), name


def test_the_table_names_the_devices_that_stages_open_and_no_others() -> None:
    told = {
        name: {f"{row.device}{'.*' * row.by_entry}.device"} if row.device else set() for name, row in STAGES.items()
    }
    assert told == {name: opened_by(modules) for name, modules in MODULES.items()}


def test_each_call_that_opens_a_device_is_in_the_code_of_a_stage() -> None:
    """Those of the library are given one."""
    written = [place_of(call) for path in (ROOT / "tasks").glob("*.py") for call in calls(ast.parse(path.read_text()))]
    assert set(written) == {place for modules in MODULES.values() for place in opened_by(modules)}
    library = {path for path in (ROOT / "merganser").rglob("*.py") if any(calls(ast.parse(path.read_text())))}
    assert library == {ROOT / "merganser/standalone/evaluate.py"}  # the command line's own, outside the pipeline


def test_the_profile_for_a_machine_with_gpus_gives_one_to_each_stage_that_may_compute_on_one() -> None:
    profile = yaml.safe_load(Path(ROOT / "profiles.yaml").read_text())["gpu"]["stages"]
    assert profile == {name: {"resources": {"gpus": 1}} for name, about in STAGES.items() if about.device}
