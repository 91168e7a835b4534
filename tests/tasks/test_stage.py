"""How a stage learns what it is to work on."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from merganser.code_digest import CodeTree, texts_as_json
from merganser.errors import InputError
from merganser.tasks.code import texts
from merganser.tasks.stage import check_card, check_code, class_line, end_well, names_of, stage_arguments
from tests.support import python
from tests.tiny import ROOT

HOSTILE = "x; touch y $(touch y) `touch y` @ z"


def test_a_kind_that_some_families_score_is_among_the_kinds_of_these_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stages depend on the folder of all kinds: an update that adds a kind runs none of them again."""
    monkeypatch.chdir(tmp_path)
    later, code = "kinds/image_classifier.txt", CodeTree(ROOT)
    for family, is_there in (("open_clip", False), ("vision", True), ("timm", True)):
        Path("params.yaml").write_text(f"base: {{family: {family}}}\n")
        written = texts(code)
        assert (later in written) is is_there
        assert "kinds/unmeasured.txt" in written


@pytest.mark.parametrize("name", ["ties", "a-b", HOSTILE])
def test_at_stands_for_what_dvc_calls_the_instance(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DVC_STAGE", f"fetch@{name}")
    monkeypatch.setattr(sys, "argv", ["merganser.tasks.fetch", "task", "@"])
    assert stage_arguments() == ["task", name]


def test_without_it_the_command_line_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DVC_STAGE", "fetch@ties")
    monkeypatch.setattr(sys, "argv", ["merganser.tasks.fetch", "task", "dare"])
    assert stage_arguments() == ["task", "dare"]


@pytest.mark.parametrize("stage", [None, "", "report"])
def test_at_needs_an_instance(stage: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    if stage is None:
        monkeypatch.delenv("DVC_STAGE", raising=False)
    else:
        monkeypatch.setenv("DVC_STAGE", stage)
    monkeypatch.setattr(sys, "argv", ["merganser.tasks.merge", "@"])
    with pytest.raises(InputError, match="give the names themselves"):
        stage_arguments()


def test_the_two_names_of_a_matrix_are_told_apart_by_what_there_is() -> None:
    assert names_of(["a-b-c"], "merganser.tasks.evaluate", [["a", "a-b"], ["c"]]) == ("a-b", "c")
    assert names_of(["a-b-c"], "merganser.tasks.evaluate", [["a", "b"], ["c", "b-c"]]) == ("a", "b-c")
    assert names_of(["a", "c"], "merganser.tasks.evaluate", [[], []]) == ("a", "c")


@pytest.mark.parametrize("argv", [[], ["a"], ["a-d"], ["a-b-c"], ["a", "b", "c"]])
def test_two_names_that_are_none_or_could_be_others_are_refused(argv: list[str]) -> None:
    with pytest.raises(InputError, match=r"tasks\.evaluate: expected two names, got "):
        names_of(argv, "merganser.tasks.evaluate", [["a", "a-b"], ["c", "b-c"]])


def test_libraries_that_were_loaded_before_have_one_thread_too() -> None:
    lines = [
        "import scipy.linalg, threadpoolctl, torch",
        "threadpoolctl.threadpool_limits(2)",
        "print(*{pool['num_threads'] for pool in threadpoolctl.threadpool_info()})",
        "from merganser.tasks.stage import run_main",
        "run_main(lambda argv: print(*{pool['num_threads'] for pool in threadpoolctl.threadpool_info()}))",
    ]
    environment = {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}
    ran = subprocess.run(
        [*python(), "-c", "\n".join(lines)], env=environment, capture_output=True, text=True, check=True
    )
    assert ran.stdout == "2\n1\n"


def test_one_name_is_one() -> None:
    assert names_of([HOSTILE], "merganser.tasks.merge", [[]]) == (HOSTILE,)
    with pytest.raises(InputError, match=r"tasks\.merge: expected one name, got a b"):
        names_of(["a", "b"], "merganser.tasks.merge", [["a", "b"]])


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in a tree of one stage, whose digest is written as DVC would have it."""
    for package in ("merganser", "merganser/tasks"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").touch()
    (tmp_path / "merganser/tasks/double.py").write_text("from merganser import factor\n")
    (tmp_path / "merganser/factor.py").write_text("FACTOR = 2\n")
    (tmp_path / "data/code").mkdir(parents=True)
    code = CodeTree(tmp_path)
    (tmp_path / "data/code/double.txt").write_text(class_line(code, "merganser.tasks.double"))
    listing = {"double.txt": code.listing("merganser.tasks.double")}
    (tmp_path / "data/code/listings.json").write_text(json.dumps(listing))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DVC_STAGE", "double")
    return tmp_path


def test_code_that_dvc_has_the_digest_of_runs(checkout: Path) -> None:
    (checkout / "merganser/factor.py").write_text("FACTOR = 2  # twice\n")
    check_code("merganser.tasks.double", "double.txt")


@pytest.mark.parametrize("parsed", [False, True])
def test_code_that_was_edited_since_it_was_digested_does_not_run(
    parsed: bool, checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if parsed:
        code = CodeTree(checkout)
        code.listing("merganser.tasks.double")
        (checkout / "data/code/texts.json").write_text(texts_as_json(code.texts))
    (checkout / "merganser/factor.py").write_text("FACTOR = 3\n")
    with pytest.raises(InputError, match=r"data/code/double\.txt was written: merganser\.factor; run"):
        check_code("merganser.tasks.double", "double.txt")
    monkeypatch.delenv("DVC_STAGE")
    check_code("merganser.tasks.double", "double.txt")  # by hand, under a debugger say


def test_a_card_is_written_by_what_a_family_said_when_it_was_digested_whatever_else_of_it_was_edited(
    checkout: Path,
) -> None:
    family = checkout / "merganser/models/families/toy.py"
    family.parent.mkdir(parents=True)
    for package in (family.parent, family.parent.parent):
        (package / "__init__.py").touch()
    text = 'LIBRARY = "a"\nPIPELINES = {"Model": "b"}\nSIZE = 1\n'
    family.write_text(text)
    (checkout / "data/code/cards").mkdir()
    (checkout / "data/code/cards/toy.txt").write_text(texts(CodeTree(checkout))["cards/toy.txt"])
    family.write_text(text.replace("1", "2"))
    check_card("toy")
    family.write_text(text.replace('"b"', '"c"'))
    with pytest.raises(InputError, match=r"cards/toy\.txt was written: merganser\.models\.families\.toy; run again"):
        check_card("toy")


@pytest.mark.parametrize("path", ["none/x", "/proc/self/mem/x", "."])
def test_a_file_that_the_system_refuses_is_named_in_one_line(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DVC_STAGE", raising=False)
    with pytest.raises(SystemExit, match=rf"^{re.escape(path)}: .*; fix that, and run again: finished work is kept$"):
        end_well(lambda argv: Path(path).write_text("x"))
