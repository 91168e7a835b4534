"""What a run keeps of the numbers it found, and of the reasons it ran."""

import json
from typing import Any

from dvcfleet.planning.plan import make_plan
from dvcfleet.repository import opened, state_folder
from merganser.flows.steps.answer import keep_previous_metrics
from tests.dvcfleet.toy import CHAIN, CHAIN_FILES, Make, Toy

PROJECT = {"metrics.json": '{"ties": {"mean": 0.5}}'}


def keep(project: Toy, run: str) -> dict[str, Any]:
    with opened(project.path) as repo:
        keep_previous_metrics(state_folder(repo), make_plan(repo).causes, run)
    kept: dict[str, Any] = json.loads(project.read(".dvcfleet/previous_metrics.json"))
    return kept


def test_a_run_that_goes_on_keeps_the_numbers_that_it_first_found(toy: Make) -> None:
    project = toy.ran(CHAIN, CHAIN_FILES)
    for name, text in PROJECT.items():
        project.write(name, text)
    project.write("source", "xyzdef")
    assert keep(project, "blue-fox") == {
        "run": "blue-fox",
        "numbers": {"ties": {"mean": 0.5}},
        "causes": {"cut": ["dep source changed"]},
    }
    project.write("metrics.json", '{"ties": {"mean": 0.75}}')
    project.write("params.yaml", "turn: {times: 2}\n")
    again = keep(project, "blue-fox")
    assert again["numbers"] == {"ties": {"mean": 0.5}}
    assert again["causes"] == {"cut": ["dep source changed"], "turn": ["params turn.times changed"]}
    assert keep(project, "red-fox")["numbers"] == {"ties": {"mean": 0.75}}


def test_the_files_that_the_numbers_are_of_are_kept_as_they_were(toy: Make) -> None:
    project = toy.ran(CHAIN, CHAIN_FILES)
    names = [
        f"{folder}/ties/{task}"
        for folder, task in (("metrics", "dark"), ("examples", "dark"), ("measures/unseen", "held"))
    ]
    for name in names:
        project.write(f"data/{name}", "then")
    keep(project, "blue-fox")
    for name in names:
        (project.path / "data" / name).unlink()
        project.write(f"data/{name}", "now")
    keep(project, "blue-fox")
    assert [project.read(f".dvcfleet/previous/{name}") for name in names] == ["then"] * 3


def test_other_repositories_keep_nothing(toy: Make) -> None:
    chain = toy(CHAIN, CHAIN_FILES | {"metrics.json": "{}"})
    chain.run()
    assert not (chain.path / ".dvcfleet/previous_metrics.json").exists()
