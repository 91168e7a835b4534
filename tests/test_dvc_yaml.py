"""Every stage depends on a digest of all the code that it runs, so that no edit leaves a stale result."""

import ast
import json
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import grimp
import pytest
import yaml

from merganser.code_digest import NEUTRAL, PACKAGES, CodeTree
from merganser.config import POINTS_FILE
from merganser.config.loading import load_params
from merganser.config.points import Points
from merganser.models import family_names, get_family
from merganser.plugins import FAMILIES, constants, module_names
from merganser.report import sections
from merganser.statistics import kinds
from merganser.tasks.code import CARDS
from merganser.tasks.stage import FOUND_BY_NAME
from merganser.tasks.stages import KEPT
from tests.support import each, python

ROOT = Path(__file__).parent.parent
DIGESTS = "data/code/"
DOCUMENT = yaml.safe_load((ROOT / "dvc.yaml").read_text())
STAGES: dict[str, dict[str, Any]] = {name: stage.get("do", stage) for name, stage in DOCUMENT["stages"].items()}
CODE = STAGES.pop("code")
# What finds modules by names that are made up while it runs: all that they find have digests of their own.
FINDERS = {
    "merganser/registry.py",
    "merganser/plugins.py",  # of the report's sections and of statistics, the stage names in full what it finds
    "merganser/merging/declared.py",  # for lists and checks of methods, which no output follows
}
FOUND = [f"{package}.{name}" for package in FOUND_BY_NAME.values() for name in CodeTree(ROOT).names(package)]


def commands_of(stage: dict[str, Any]) -> list[str]:
    commands = stage["cmd"] if isinstance(stage["cmd"], list) else [stage["cmd"]]
    return [command.split()[2] for command in commands]


MODULES = sorted({module for stage in STAGES.values() for module in commands_of(stage)})


@pytest.fixture(scope="module")
def graph() -> grimp.ImportGraph:
    return grimp.build_graph(*PACKAGES, cache_dir=None, exclude_type_checking_imports=True)


@pytest.fixture(scope="module")
def code() -> CodeTree:
    return CodeTree(ROOT)


def is_neutral(name: str) -> bool:
    return any(name == neutral or name.startswith(f"{neutral}.") for neutral in NEUTRAL)


def reached(graph: grimp.ImportGraph, module: str) -> set[str]:
    """List what a module imports, directly or not, as grimp sees it; what is neutral is not looked into."""
    found, todo = set(), [module]
    while todo:
        current = todo.pop()
        if current not in found and not is_neutral(current):
            found.add(current)
            todo += graph.find_modules_directly_imported_by(current)
    return found


def followed(code: CodeTree, module: str) -> set[str]:
    return {found.name for found in code.followed(module)}


@each("name", STAGES)
def test_a_stage_depends_on_the_digests_of_what_its_commands_run(name: str) -> None:
    wanted = {f"{DIGESTS}{module.removeprefix('merganser.tasks.')}.txt" for module in commands_of(STAGES[name])}
    found = tuple(f"{DIGESTS}{folder}" for folder in (*FOUND_BY_NAME, CARDS))
    declared = {dep for dep in STAGES[name]["deps"] if dep.startswith(DIGESTS) and not dep.startswith(found)}
    declared.discard(f"{DIGESTS}{KEPT}")
    assert declared == wanted


@each("name", STAGES)
def test_a_stage_names_no_file_of_code(name: str) -> None:
    assert [dep for dep in STAGES[name]["deps"] if dep.startswith(PACKAGES)] == []


@each("module", MODULES)
def test_all_that_a_stage_imports_is_in_its_digest(module: str, graph: grimp.ImportGraph, code: CodeTree) -> None:
    assert reached(graph, module) - followed(code, module) == set()


@each("module", FOUND)
def test_all_that_is_imported_by_what_is_found_by_name_is_in_its_digest(
    module: str, graph: grimp.ImportGraph, code: CodeTree
) -> None:
    assert reached(graph, module) - followed(code, module) == set()


LOADED = """
import gc, json, os, sys

gc.disable()  # what is imported stays
from importlib import import_module
# once for all: a copy of this process imports each group of modules
import datasets, numba, psutil, pydantic.main, ruamel.yaml, scipy.linalg, scipy.stats, threadpoolctl, torch

for group in sys.argv[1:]:
    if not os.fork():
        for name in group.split():
            import_module(name)
        print(json.dumps([group, list(sys.modules)]), flush=True)
        os._exit(0)
    assert os.wait()[1] == 0, group
"""


def held_after(groups: Iterable[str]) -> dict[str, set[str]]:
    """The project's modules that Python holds once it has imported the modules of a group, for each group."""
    command = [*python(), "-c", LOADED, *groups]
    done = subprocess.run(command, cwd=ROOT, check=True, text=True, stdout=subprocess.PIPE)
    found = dict(json.loads(line) for line in done.stdout.splitlines())
    return {group: {each for each in modules if each.split(".")[0] in PACKAGES} for group, modules in found.items()}


@pytest.fixture(scope="module")
def loaded() -> dict[str, tuple[set[str], set[str]]]:
    """What Python holds once it has imported a stage, and once it has imported the neutral ones of these modules."""
    held = held_after(MODULES)
    neutral = {module: " ".join(sorted(filter(is_neutral, held[module]))) for module in MODULES}
    brought = held_after({*neutral.values()})
    return {module: (held[module], brought[neutral[module]]) for module in MODULES}


@each("module", MODULES)
def test_all_that_python_loads_for_a_stage_is_in_its_digest(
    module: str, loaded: dict[str, tuple[set[str], set[str]]], code: CodeTree
) -> None:
    """What only the neutral modules bring in is neutral too."""
    held, brought = loaded[module]
    assert len(held) > 5
    assert held - brought - followed(code, module) == set()


def test_only_methods_families_and_kinds_are_found_by_name() -> None:
    """Anything else that makes up a module's name while it runs would be outside the digests.

    No stage imports the command line.
    """
    found, apart = set(), ROOT / "merganser/command_line"
    files = (file for package in PACKAGES for file in (ROOT / package).rglob("*.py"))
    for file in (file for file in files if apart not in file.parents):
        nodes = [node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Name | ast.Attribute)]
        names = {node.id if isinstance(node, ast.Name) else f".{node.attr}" for node in nodes}
        if names & {"import_module", ".import_module", "__import__", "exec", "eval", ".iter_modules", "runpy"}:
            found.add(str(file.relative_to(ROOT)))
    assert found == FINDERS


def test_every_section_of_the_report_is_in_the_digest_of_its_stage(code: CodeTree) -> None:
    found = {f"{sections.PACKAGE}.{name}" for name in module_names(sections.__path__)}
    assert {f"{sections.PACKAGE}.{name}" for name in sections.ORDER} <= found
    assert found <= followed(code, "merganser.tasks.report")


def test_every_kind_of_statistic_is_in_the_digest_of_its_stage(code: CodeTree) -> None:
    found = {f"{kinds.__name__}.{name}" for name in module_names(kinds.__path__)}
    assert found <= followed(code, "merganser.tasks.statistics")
    assert not found - {f"{kinds.__name__}.gram"} & followed(code, "merganser.tasks.learn")


def test_the_stage_that_digests_depends_on_all_that_it_digests(code: CodeTree) -> None:
    names = [*MODULES, *commands_of(CODE), *FOUND]
    modules = set().union(*(followed(code, name) for name in names))
    folders, files = [dep for dep in CODE["deps"] if (ROOT / dep).is_dir()], CODE["deps"]
    paths = {name: str(path.relative_to(ROOT)) for name in modules if (path := path_of(name))}
    assert len(paths) > 100
    assert [p for p in paths.values() if p not in files and not p.startswith(tuple(f"{f}/" for f in folders))] == []


def path_of(name: str) -> Path:
    folder = ROOT.joinpath(*name.split("."))
    return folder / "__init__.py" if folder.is_dir() else folder.with_suffix(".py")


def test_stages_that_merge_depend_on_their_own_method_and_the_report_on_all() -> None:
    of_methods = {name: [dep for dep in stage["deps"] if "methods" in dep] for name, stage in STAGES.items()}
    own = [f"{DIGESTS}methods/${{item.method}}.txt"]
    assert {name: deps for name, deps in of_methods.items() if deps} == {
        "learn": [f"{DIGESTS}methods/${{item.learner}}.txt"],
        "merge": own,
        "point": own,
        "step": own,
        "search": own,
        "report": [f"{DIGESTS}methods"],
    }


def test_merges_depend_on_what_their_family_says_of_models_in_cards_and_every_family_writes_it_out() -> None:
    merges = [name for name, stage in STAGES.items() if f"{DIGESTS}cards/${{base.family}}.txt" in stage["deps"]]
    assert merges == ["merge"]
    for name in family_names():
        said = constants(FAMILIES, name)
        assert {"LIBRARY", "PIPELINES"} <= said.keys()
        assert all(getattr(get_family(name), key) == value for key, value in said.items())


def test_stages_that_run_networks_depend_on_the_family_and_on_all_kinds() -> None:
    family, kinds = f"{DIGESTS}families/${{base.family}}.txt", f"{DIGESTS}kinds"
    named = {name: [dep for dep in stage["deps"] if dep in (family, kinds)] for name, stage in STAGES.items()}
    assert {name: deps for name, deps in named.items() if deps} == {
        "fetch_data": [kinds],
        "describe": [family],
        "prepare": [family, kinds],
        "prepare_validation": [family, kinds],
        "prepare_unseen": [family, kinds],
        "evaluate_unseen": [family, kinds],
        "statistics": [family, kinds],
        "route": [family, kinds],
        "surgery": [family, kinds],
        "learn": [family, kinds],
        "search": [kinds, family],
        "evaluate": [family, kinds],
        "point": [family, kinds],
        "step": [family, kinds],
        "study_rank": [family, kinds],
    }


def test_the_points_are_those_of_the_demonstration() -> None:
    assert (ROOT / POINTS_FILE).read_text() == Points(load_params(ROOT / "params.yaml")).text


def test_dvc_shows_the_metrics_of_one_small_file() -> None:
    assert {name: stage["metrics"] for name, stage in STAGES.items() if "metrics" in stage} == {
        "report": ["metrics.json"]
    }


def test_dvc_yaml_is_a_contents_page() -> None:
    assert len((ROOT / "dvc.yaml").read_text().splitlines()) < 420
