"""A repository's commands run in this process; the engine's toy repositories and its shared Prefect server."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from merganser.flows.commands import cli
from merganser.flows.commands.init import Suite, init
from tests.command_line.conftest import Done, Refused, done, refused
from tests.dvcfleet.conftest import toy
from tests.support import copy_repository, made_once
from tests.tiny import ROOT, make_models
from tests.tiny_clip import write_data_set

__all__ = ["Done", "Refused", "done", "refused", "toy"]


@pytest.fixture
def command_line() -> Callable[[], None]:
    """Give the command line that `done` and `refused` run."""
    return cli.main


@pytest.fixture
def begun(tmp_path_factory: pytest.TempPathFactory, tmp_path: Path) -> Path:
    """Give a copy of a comparison that was begun, with tiny models, data and choices."""
    return copy_repository(made_once(tmp_path_factory, "begun", _begin) / "mine", tmp_path / "mine")


def _begin(place: Path) -> None:
    folder = place / "mine"
    place.mkdir()
    init(folder, Suite("image"))
    shutil.rmtree(folder / "examples")
    params = yaml.safe_load((ROOT / "tests/tiny/params.yaml").read_text())
    sections = ("seed", "base", "parameters", "tasks", "decompose", "merge", "evaluation")
    few = {key: params[key] for key in sections} | {"methods": {"ties": params["methods"]["ties"]}}
    (folder / "params.yaml").write_text(yaml.safe_dump(few, sort_keys=False))
    make_models(folder / "hub")
    for seed, task in enumerate(("dark", "light")):
        write_data_set(folder / "datasets" / task, {"validation": 6, "test": 9 + seed})
