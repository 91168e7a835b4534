"""Lineages of a result in two runs, of which an entry has another name in the second."""

from pathlib import Path

import pytest

from merganser.errors import InputError
from merganser.flows.evidence.runs.diff import diff_lineages
from merganser.flows.evidence.runs.printing import lineage_diff_lines
from merganser.flows.evidence.runs.run import WORKSPACE
from tests.dvcfleet.test_experiments import committed, run
from tests.dvcfleet.toy import Make, Toy

STAGES = """
stages:
  merge:
    foreach: ${methods}
    do:
      cmd: cp source $(echo $DVC_STAGE | cut -d@ -f2)
      deps: [source]
      params: ["methods.${key}"]
      outs: ["${key}"]
  evaluate:
    matrix: {entry: "${methods}", task: [dark, light]}
    cmd: echo $DVC_STAGE | sed 's/.*-/1 /' > score-$(echo $DVC_STAGE | cut -d@ -f2)
    deps: ["${item.entry}"]
    outs: ["score-${item.entry}-${item.task}"]
"""
PARAMS = """
methods:
  ties: {method: ties, density: 0.5}
  mean: {method: average}
  twice: {method: average}
"""


@pytest.fixture
def made(toy: Make, monkeypatch: pytest.MonkeyPatch) -> Toy:
    """Give a repository with a run; entries are renamed after it, two of which are the same, and run again."""
    project = committed(toy(STAGES, {"params.yaml": PARAMS, "source": "1"}))
    assert run(project, "first", monkeypatch)[0] == 0
    for old, new in (("ties:", "ties-20:"), ("mean:", "average:"), ("twice:", "again:")):
        project.write("params.yaml", project.read("params.yaml").replace(old, new))
    project.write("source", "2")
    assert run(project, "second", monkeypatch)[0] == 0
    return project


def test_an_entry_of_another_name_is_compared_with_what_has_the_same_method_and_parameters(made: Toy) -> None:
    for names in (("first", "second", "score-ties-20-dark"), ("first", WORKSPACE, "score-ties-20-dark")):
        found = diff_lineages(made.path, *names)
        assert found.renamed == {"ties-20": "ties"}
        assert found.of == ("evaluate@ties-dark and evaluate@ties-20-dark",)
        assert [(each.kind, each.name, each.stages) for each in found.differences] == [
            ("input", "source", ("merge@ties",))
        ]
    assert list(lineage_diff_lines(found))[1] == (
        "entry ties-20 is compared with ties: the same method and parameters under another name"
    )
    back = diff_lineages(made.path, "second", "first", "score-ties-20-light")
    assert back.of == ("evaluate@ties-20-light and evaluate@ties-light",)


def test_entries_that_two_could_be_are_paired_with_none(made: Toy) -> None:
    with pytest.raises(InputError, match="no result that both have"):
        diff_lineages(Path(made.path), "first", "second", "score-again-dark")
