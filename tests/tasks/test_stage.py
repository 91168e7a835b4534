"""How a stage learns what it is to work on."""

import sys

import pytest

from merganser.errors import InputError
from tasks.stage import arguments, only_name, two_names

HOSTILE = "x; touch y $(touch y) `touch y` @ z"


@pytest.mark.parametrize("name", ["ties", "a-b", HOSTILE])
def test_at_stands_for_what_dvc_calls_the_instance(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DVC_STAGE", f"fetch@{name}")
    monkeypatch.setattr(sys, "argv", ["tasks.fetch", "task", "@"])
    assert arguments() == ["task", name]


def test_without_it_the_command_line_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DVC_STAGE", "fetch@ties")
    monkeypatch.setattr(sys, "argv", ["tasks.fetch", "task", "dare"])
    assert arguments() == ["task", "dare"]


@pytest.mark.parametrize("stage", [None, "", "report"])
def test_at_needs_an_instance(stage: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    if stage is None:
        monkeypatch.delenv("DVC_STAGE", raising=False)
    else:
        monkeypatch.setenv("DVC_STAGE", stage)
    monkeypatch.setattr(sys, "argv", ["tasks.merge", "@"])
    with pytest.raises(InputError, match="give the names themselves"):
        arguments()


def test_the_two_names_of_a_matrix_are_told_apart_by_what_there_is() -> None:
    assert two_names(["a-b-c"], "evaluate", ["a", "a-b"], ["c"]) == ("a-b", "c")
    assert two_names(["a-b-c"], "evaluate", ["a", "b"], ["c", "b-c"]) == ("a", "b-c")
    assert two_names(["a", "c"], "evaluate", [], []) == ("a", "c")


@pytest.mark.parametrize("argv", [[], ["a"], ["a-d"], ["a-b-c"], ["a", "b", "c"]])
def test_two_names_that_are_none_or_could_be_others_are_refused(argv: list[str]) -> None:
    with pytest.raises(InputError, match=r"tasks\.evaluate: expected two names, got "):
        two_names(argv, "evaluate", ["a", "a-b"], ["c", "b-c"])


def test_one_name_is_one() -> None:
    assert only_name([HOSTILE], "merge") == HOSTILE
    with pytest.raises(InputError, match=r"tasks\.merge: expected one name, got a b"):
        only_name(["a", "b"], "merge")
