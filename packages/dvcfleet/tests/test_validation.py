import os
from pathlib import Path

import pytest

from dvcfleet.planning.validation import ProjectError
from tests.dvcfleet.toy import CHAIN, CHAIN_FILES, Make

SOURCES = "base: {source: base}\ntasks: {}\n"
PROJECT = CHAIN_FILES | {
    "pyproject.toml": '[tool.dvcfleet]\nproject = "merganser.flows.comparison:MERGANSER"\n',
    "params.yaml": CHAIN_FILES["params.yaml"] + SOURCES,
}


def test_a_project_is_checked_where_there_is_work_or_its_params_are_others(
    toy: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    project, checks = toy(CHAIN, PROJECT), []
    monkeypatch.setattr("dvcfleet.run.validate", checks.append)

    def checked() -> int:
        checks.clear()
        assert project.run()[0] == 0
        return len(checks)

    assert checked() == 1
    assert checked() == 0
    project.write("source", "xyz")
    assert checked() == 1
    project.write("params.yaml", PROJECT["params.yaml"] + "unused: 1\n")
    assert checked() == 1
    assert checked() == 0


def test_what_was_found_right_is_not_checked_again_to_show_a_plan(toy: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    project, checks = toy(CHAIN, PROJECT), []
    monkeypatch.setattr("dvcfleet.planning.plan.validate", checks.append)
    for _ in range(2):
        assert project.plan().work
    assert len(checks) == 1


def test_a_mistake_is_refused_before_any_work_and_again_each_time(toy: Make) -> None:
    project = toy(CHAIN, PROJECT)
    for _ in range(2):
        with pytest.raises(ProjectError, match=r"params\.yaml"):
            project.run()
        with pytest.raises(ProjectError, match=r"params\.yaml"):
            project.plan()
    assert project.ran() == []
    assert not (project.path / "dvc.lock").exists()


def test_any_other_repository_is_taken_as_it_is(toy: Make) -> None:
    assert toy(CHAIN, CHAIN_FILES).run()[0] == 0


SPELLINGS = """
stages:
  Ties: {cmd: echo Ties > out/Ties, outs: [out/Ties]}
  ties: {cmd: echo ties > out/ties, outs: [out/ties]}
  average: {cmd: echo average > out/average, outs: [out/average]}
"""
NESTED = "stages: {a: {cmd: x, outs: [out/A]}, b: {cmd: x, outs: [out/a/b]}}"


def exists_in_some_case(path: Path) -> bool:
    """Look as exFAT does, which cannot be mounted everywhere."""
    return path.parent.is_dir() and path.name.lower() in map(str.lower, os.listdir(path.parent))


def test_outputs_that_differ_in_letter_case_are_refused_where_the_file_system_ignores_it(
    toy: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = toy(SPELLINGS, {"out/.keep": ""})
    assert project.run()[0] == 0
    assert sorted(path.read_text() for path in project.path.glob("out/[!.]*")) == ["Ties\n", "average\n", "ties\n"]

    monkeypatch.setattr(Path, "exists", exists_in_some_case)
    with pytest.raises(ProjectError, match=r"out/Ties of Ties and out/ties of ties are one file here: .*rename one"):
        project.plan()


def test_an_output_inside_another_is_refused_by_its_letters_too(monkeypatch: pytest.MonkeyPatch, toy: Make) -> None:
    project = toy(NESTED, {})
    assert len(project.plan().work) == 2
    monkeypatch.setattr(Path, "exists", exists_in_some_case)
    with pytest.raises(ProjectError, match="out/a/b of b and out/A of a"):
        project.plan()
