"""DVC's index by our shortcuts is DVC's own."""

from contextlib import AbstractContextManager, chdir, nullcontext
from typing import Any

import pytest
from dvc.dependency.param import ParamsDependency
from dvc.repo import Repo

from dvcfleet.dvc_adapter.internals import fast_index
from dvcfleet.errors import UserError
from tests.dvcfleet.toy import Make, Toy

PATHS = """
stages:
  inside: {cmd: x, deps: [source, "http://127.0.0.1/a", /etc/hostname], outs: [made/one, {made/two: {persist: true}}]}
  colon: {cmd: x, deps: [made, "a:b"], outs: ["c:d"], metrics: [{m.json: {cache: false}}]}
"""


def index_of(toy: Toy, shortcuts: AbstractContextManager[None]) -> tuple[list[Any], list[Any]]:
    """List the paths of a repository with what DVC makes of each, and the graph's edges."""
    with chdir(toy.path), shortcuts, Repo() as repo:
        paths = [
            (each.fs_path, each.def_path, type(each.fs), each.fs.config, each.fs is repo.fs, each.hash_name)
            for stage in repo.index.stages
            for each in (*stage.deps, *stage.outs)
        ]
        return paths, [(stage.addressing, need.addressing) for stage, need in repo.index.graph.edges]


@pytest.mark.parametrize("config", ["", "[core]\n    checksum_jobs = 3\n"])
def test_the_shortcuts_find_what_dvc_finds(toy: Make, config: str) -> None:
    made = toy(PATHS, {"source": ""})
    made.write(".dvc/config", config)
    assert index_of(made, fast_index()) == index_of(made, nullcontext())


def test_a_cycle_is_refused_naming_its_stages(toy: Make) -> None:
    cycle = toy("stages: {a: {cmd: x, deps: [y], outs: [z]}, b: {cmd: x, deps: [z], outs: [y]}}", {})
    with pytest.raises(UserError, match=r"both a dependency and an output in stages: (a, b|b, a)"):
        cycle.plan()


def test_parameters_are_read_again_when_their_file_has_changed(toy: Make) -> None:
    made = toy("stages: {a: {cmd: x, params: [b.c, d], outs: [z]}}", {"params.yaml": "b: {c: 1}\nd: 2\n"})
    with chdir(made.path), fast_index(), Repo() as repo:
        (dep,) = next(iter(repo.index.stages)).deps
        assert isinstance(dep, ParamsDependency)
        assert dep.read_params() == {"b.c": 1, "d": 2}
        made.write("params.yaml", "b: {c: [1]}\n")
        assert dep.read_params() == {"b.c": [1]}
