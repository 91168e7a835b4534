"""What may fall and not rise."""

import ast

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


def test_what_has_fallen_is_lowered_and_what_has_risen_needs_a_reason() -> None:
    table = ratchet.read_table("     5 lines in all\n     9 names  # two papers use it\n")
    now = {"lines in all": 7, "names": 8, "rooms": 1}
    assert ratchet.risen(table, now) == ["lines in all", "rooms"]
    lowered = ratchet.updated(table, now)
    assert lowered == {"lines in all": (5, ""), "names": (8, "two papers use it")}
    assert ratchet.risen(lowered, now) == ["lines in all", "rooms"]
    raised = ratchet.updated(table, now, "a new stage")
    assert raised == {
        "lines in all": (7, "a new stage"),
        "names": (8, "two papers use it"),
        "rooms": (1, "a new stage"),
    }
    assert ratchet.risen(raised, now) == []
    assert ratchet.read_table(ratchet.table_text(raised)) == raised
