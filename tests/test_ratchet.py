"""What may fall and not rise."""

import ast
from pathlib import Path

import pytest

from tools import ratchet


def parsed(**modules: str) -> dict[str, ast.Module]:
    return {f"merganser/{name}.py": ast.parse(text) for name, text in modules.items()}


def test_a_name_that_two_modules_define_is_counted_unless_a_protocol_or_a_command_has_it() -> None:
    trees = parsed(a="def read(): ...\ndef _own(): ...\ndef main(): ...\nclass Plan: ...", b="class Plan: ...")
    assert ratchet.defined_twice(trees) == {"Plan": ["merganser/a.py", "merganser/b.py"]}
    commands = parsed(a="@app.command()\ndef merge(): ...", b="def merge(): ...")
    assert ratchet.defined_twice(commands) == {}
    families = {f"merganser/models/families/{name}.py": ast.parse("def check(): ...") for name in ("clip", "causal")}
    assert ratchet.defined_twice(families) == {}


def test_private_names_of_other_modules_are_counted() -> None:
    assert ratchet.private_imports(ast.parse("from a import _b, c\ndef f():\n    from d import _e")) == 2


def test_what_rises_is_refused_until_a_reason_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "ratchet.txt"
    table.write_text("     5 lines in all\n     9 names  # two papers use it\n")
    monkeypatch.setattr(ratchet, "TABLE", table)
    monkeypatch.setattr(ratchet, "measured", lambda: {"lines in all": 7, "names": 8})
    assert run(monkeypatch) == 1
    assert "lines in all: 7, and tools/ratchet.txt allows 5" in capsys.readouterr().out
    assert run(monkeypatch, "--write") == 1
    assert ratchet.read_table(table.read_text()) == {"lines in all": (5, ""), "names": (8, "two papers use it")}
    assert run(monkeypatch, "--write", "--because", "a new stage") == 0
    assert ratchet.read_table(table.read_text())["lines in all"] == (7, "a new stage")
    assert run(monkeypatch) == 0


def run(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr("sys.argv", ["ratchet", *words])
    return ratchet.main()
