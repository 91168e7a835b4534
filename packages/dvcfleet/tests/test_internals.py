"""With a DVC that has renamed what it does not promise, a run says so and ends as with any other."""

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from dvc.repo.experiments.refs import ExpRefInfo
from dvc.stage.cache import _get_cache_hash

import dvcfleet
from dvcfleet.dvc_adapter import protocols
from dvcfleet.dvc_adapter.internals import NEEDED, PROTOCOLS
from dvcfleet.dvc_adapter.repositories import experiment_ref
from dvcfleet.dvc_adapter.run_cache import entry_hash, run_key
from dvcfleet.repository import opened
from merganser import flows
from tests.dvcfleet.renamed import FAST, renamed_dvc
from tests.dvcfleet.test_storing import FILES, KINDS, files_below
from tests.dvcfleet.toy import CHAIN, CHAIN_FILES, Make, Toy

# What fast paths import: something slower takes their place.
REPLACED = {
    "dvc.dependency:param",
    "dvc.repo:graph",
    "dvc.stage.run:_make_cmd",
    "dvc.utils:fix_env",
    "dvc_data.hashfile:checkout",
    "dvc_data.hashfile.hash:hash_file",
    "dvc_data.hashfile.obj:HashFile",
    "dvc_objects.fs.generic:test_links",
    "dvc_objects.fs.utils:umask",
}
RUN = "import sys; from pathlib import Path; from dvcfleet.run import run; sys.exit(run(repo=Path(), workers=1))"


def run_with(dvc: Path, toy: Toy, command: Sequence[str] = ("-c", RUN)) -> subprocess.CompletedProcess[str]:
    """Run Python in a toy's folder with another DVC than the installed one."""
    paths = [str(dvc), str(Path(dvcfleet.__file__).parents[1])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths), "DVC_NO_ANALYTICS": "1", "COLUMNS": "1000"}
    return subprocess.run(
        [sys.executable, *command], cwd=toy.path, env=environment, capture_output=True, text=True, check=False
    )


def check_renamed(make: Make, folder: Path, names: Sequence[str]) -> None:
    """Rename internals of these fast paths, and compare what runs leave with what they leave otherwise."""
    dvc = renamed_dvc(folder / "dvc", [FAST[name] for name in names])
    ours, plain = make(KINDS, FILES, "ours"), make(KINDS, FILES, "plain")
    first = run_with(dvc, ours)
    assert first.returncode == 0, first.stdout + first.stderr
    for name in names:
        assert f"using its public calls, {name} is slower" in first.stdout
    assert "Traceback" not in first.stderr
    plain.run(workers=1)
    assert ours.read("dvc.lock") == plain.read("dvc.lock")
    assert files_below(ours.path / "made") == files_below(plain.path / "made")
    assert "nothing to do" in run_with(dvc, ours).stdout
    # Another input, and the first one again: that is in the run cache.
    for text, said in (("t", "done"), ("s", "restored")):
        for toy in (ours, plain):
            toy.write("source", text)
        again = run_with(dvc, ours)
        assert again.returncode == 0, again.stdout + again.stderr
        assert said in again.stdout
        assert f" {said}" in plain.run(workers=1)[1]
        assert ours.read("dvc.lock") == plain.read("dvc.lock")
    status = run_with(dvc, ours, ("-m", "dvc", "status", "--json"))
    assert status.stdout.strip() == "{}", status.stdout + status.stderr
    assert ours.settled()


@pytest.mark.drill
def test_without_any_of_the_internals_of_fast_paths_a_run_ends_well_and_says_what_is_missing(
    toy: Make, tmp_path: Path
) -> None:
    source = (Path(dvcfleet.__file__).parent / "dvc_adapter").glob("*.py")
    assert FAST.keys() == {name for path in source for name in re.findall(r'@otherwise\("(.+?)"', path.read_text())}
    check_renamed(toy, tmp_path, list(FAST))


@pytest.mark.parametrize(
    "name",
    [
        "dvc.repo.reproduce.plan_repro",
        "dvc.stage.exceptions.StageNotFound",
        "dvc.output.Output.use_scm_ignore",
    ],
)
def test_a_dvc_without_what_is_needed_is_refused_by_name(toy: Make, tmp_path: Path, name: str) -> None:
    chain = toy(CHAIN, CHAIN_FILES)
    ended = run_with(renamed_dvc(tmp_path / "dvc", [rf"\b{name.rpartition('.')[2]}\b"]), chain)
    assert ended.returncode == 2
    assert f"has no {name}, and every run needs it" in ended.stdout
    assert "dvc>=3." in ended.stdout
    assert "Traceback" not in ended.stderr


def test_every_name_of_dvcs_that_is_imported_at_run_time_is_guarded() -> None:
    # A name is guarded by itself or by an attribute of it, a module by any name in it.
    known = {_first(name) for name in NEEDED} | REPLACED
    modules = {name.partition(":")[0] for name in NEEDED}
    unguarded = [
        f"{path}:{node.lineno} {name}"
        for package in (dvcfleet, flows)
        for path in sorted(Path(str(package.__file__)).parent.rglob("*.py"))
        for node, name in _imported_of_dvc(ast.parse(path.read_text(encoding="utf-8")))
        if name not in known and name.replace(":", ".") not in modules
    ]
    assert unguarded == []


def _first(name: str) -> str:
    """Return `module:name` of `module:name.attribute`."""
    module, _, path = name.partition(":")
    return f"{module}:{path.partition('.')[0]}"


def _imported_of_dvc(tree: ast.Module) -> Iterator[tuple[ast.stmt, str]]:
    """Find what is imported of DVC's packages where it runs, as `module:name`."""
    typing_only = _typing_only(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and id(node) not in typing_only and _is_dvcs(node.module or ""):
            yield from ((node, f"{node.module}:{each.name}") for each in node.names)
        elif isinstance(node, ast.Import) and id(node) not in typing_only:
            yield from ((node, each.name) for each in node.names if _is_dvcs(each.name))


def _is_dvcs(module: str) -> bool:
    return module.partition(".")[0] in ("dvc", "dvc_data", "dvc_objects")


def _typing_only(tree: ast.Module) -> set[int]:
    """Return the ids of the nodes that only a type checker reads."""
    return {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }


def test_dvcs_objects_have_what_the_protocols_say_is_set_on_them(toy: Make) -> None:
    chain = toy.ran(CHAIN, CHAIN_FILES)
    with opened(chain.path) as repo:
        stage = next(each for each in repo.index.stages if each.params)
        found: dict[type, object] = {
            protocols.Repo: repo,
            protocols.Index: repo.index,
            protocols.PipelineStage: stage,
            protocols.Stage: stage,
            protocols.Item: stage.outs[0],
            protocols.Output: stage.outs[0],
            protocols.Dependency: stage.deps[0],
            protocols.ParamsDependency: stage.params[0],
            protocols.HashInfo: stage.outs[0].hash_info,
            protocols.Meta: stage.outs[0].meta,
        }
        assert found.keys() == PROTOCOLS.keys()
        for protocol, of_dvc in found.items():
            names = vars(protocol).get("__annotations__", {})
            assert [name for name in names if not hasattr(of_dvc, name)] == []


def test_the_protocols_say_no_more_than_is_used() -> None:
    used = {
        node.attr
        for package in (dvcfleet, flows)
        for path in Path(str(package.__file__)).parent.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute)
    }
    declared = {name for protocol in PROTOCOLS for name in (*vars(protocol), *protocol.__annotations__)}
    assert [name for name in declared - used if not name.startswith("_")] == []


def test_the_run_caches_names_are_dvcs() -> None:
    entry = {
        "cmd": "x",
        "deps": [{"path": "a", "hash": "md5", "md5": "1" * 32, "size": 3}],
        "params": {"params.yaml": {"b": [1, {"size": 2}]}},
        "outs": [{"path": "c", "md5": "2.dir", "size": 1, "nfiles": 2}],
    }
    assert entry_hash(entry) == _get_cache_hash(dict(entry))
    assert run_key(entry) == _get_cache_hash(dict(entry), key=True)
    assert run_key({"cmd": "x"}) == _get_cache_hash({"cmd": "x"}, key=True)


def test_an_experiments_reference_is_dvcs() -> None:
    assert experiment_ref("a" * 40, "warm-cat") == str(ExpRefInfo("a" * 40, "warm-cat"))


def test_what_dvc_does_not_promise_is_used_in_the_adapter_only() -> None:
    root = Path(dvcfleet.__file__).parent
    found = [
        f"{path.relative_to(root)}:{node.lineno} {name}"
        for path in sorted(root.rglob("*.py"))
        if path.parent.name != "dvc_adapter"
        for node, name in _internals_in(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert found == []


PROMISED = ("dvc.repo", "dvc.exceptions", "dvc.lock", "dvc.rwlock", "dvc.scm", "dvc.output", "dvc.dependency.base")


def _internals_in(tree: ast.Module) -> "list[tuple[ast.stmt | ast.expr, str]]":
    """List imports of DVC's other modules where they run, and private attributes of what is not our own."""
    typing_only = _typing_only(tree)
    found: list[tuple[ast.stmt | ast.expr, str]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and _is_dvcs(node.module or ""):
            if id(node) not in typing_only and node.module not in PROMISED:
                found.append((node, str(node.module)))
        elif isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__"):
            owner = ast.unparse(node.value).split(".")[-1]
            if owner in ("repo", "scm", "stage", "out", "dep", "stage_cache", "state", "cache"):
                found.append((node, ast.unparse(node)))
    return found
