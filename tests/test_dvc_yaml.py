"""dvc.yaml names all the code that a stage runs, so that no edit leaves a stale result."""

from pathlib import Path

import grimp
import pytest
import yaml

from merganser import registry

ROOT = Path(__file__).parent.parent
# Reading choices, finding methods, telling mistakes: a change there changes no output that would still be accepted.
NEUTRAL = {
    "merganser",
    "merganser.errors",
    "merganser.methods",
    "merganser.config",
    "merganser.config.entries",
    "merganser.config.loading",
    "merganser.config.params",
    "merganser.registry",
    "dvcfleet.secrets",
    "merganser.limits",
    "tasks",
    "tasks.stage",
}
STAGES = {
    name: stage.get("do", stage) for name, stage in yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"].items()
}


@pytest.fixture(scope="module")
def graph() -> grimp.ImportGraph:
    return grimp.build_graph("merganser", "tasks", cache_dir=None)


def _modules_of(stage: dict) -> list[str]:
    commands = stage["cmd"] if isinstance(stage["cmd"], list) else [stage["cmd"]]
    return [command.split()[2] for command in commands]


def _undeclared(graph: grimp.ImportGraph, module: str, declared: list[str]) -> list[str]:
    """List the modules that a module brings in and no dependency covers; what is neutral is not looked into."""
    found, todo = set(), [module]
    while todo:
        current = todo.pop()
        if current in found or current in NEUTRAL:
            continue
        found.add(current)
        todo += graph.find_modules_directly_imported_by(current)
    paths = {name: name.replace(".", "/") for name in found}
    covered = {dep.removesuffix(".py") for dep in declared}
    return sorted(n for n, p in paths.items() if not any(p == dep or p.startswith(f"{dep}/") for dep in covered))


@pytest.mark.parametrize("name", STAGES)
def test_a_stage_depends_on_all_the_code_it_runs(name: str, graph: grimp.ImportGraph) -> None:
    stage = STAGES[name]
    missing = {module: _undeclared(graph, module, stage["deps"]) for module in _modules_of(stage)}
    assert not {module: names for module, names in missing.items() if names}


@pytest.mark.parametrize("name", STAGES)
def test_the_code_a_stage_depends_on_exists(name: str) -> None:
    code = [dep for dep in STAGES[name]["deps"] if dep.startswith(("merganser/", "tasks/")) and "$" not in dep]
    assert code
    assert [dep for dep in code if not (ROOT / dep).exists()] == []


@pytest.mark.parametrize("stage", ["merge", "study_tasks"])
@pytest.mark.parametrize("method", registry.names())
def test_a_merge_depends_on_all_the_code_its_method_uses(method: str, stage: str, graph: grimp.ImportGraph) -> None:
    """Another method's module is no dependency of a merge: an edit there would go unseen."""
    declared = [dep.replace("${item.method}", method) for dep in STAGES[stage]["deps"]]
    assert _undeclared(graph, f"merganser.methods.{method}", declared) == []


@pytest.mark.parametrize("method", registry.names())
def test_a_method_has_the_name_of_its_file(method: str) -> None:
    assert registry.get(method).name == method
