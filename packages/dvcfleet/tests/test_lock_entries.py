"""The text of dvc.lock's entries is what DVC's own YAML library writes."""

from collections.abc import Callable
from contextlib import suppress
from copy import deepcopy
from typing import Any

import pytest
from dvc.utils.serialize import YAMLFileCorruptedError, dumps_yaml, parse_yaml_for_update
from hypothesis import example, given
from hypothesis import strategies as st

from dvcfleet.dvc_adapter import lock_entries as entries
from dvcfleet.dvc_adapter.lock_entries import (
    are_as_dumped,
    join_lock_file,
    lock_entry,
    number_anchors,
    split_lock_file,
    yaml_text,
)
from tests.support import steady

# Whatever could be taken for something else: numbers, booleans, comments, quotes, indicators, long lines.
ODD = ["yes", "NO", "null", "~", "1e3", "0b1", "e1", "=", "<<", ".inf", "a: b", "a #b", "a  b", "a ", "- a", "true", ""]
CHARACTERS = "abeyznoAZ019_./@%+=,>()'\"$*&|;!{}[]~^<-:# ?`\\\n\té"
PLAIN = "abcxyzNO019_./@%+=,>()'\"$*&|;!{}[]~^<-"
words = st.builds(lambda first, rest: first + rest, st.sampled_from("abyNOz"), st.text(PLAIN, max_size=20))
commands = st.lists(words, min_size=1, max_size=12).map(" ".join)
hashes = st.text("0123456789abcdef", min_size=32, max_size=32)
texts = words | commands | hashes | st.text(CHARACTERS, max_size=100) | st.sampled_from(ODD)
plain = words | commands | hashes | st.integers()
scalars = plain | texts | st.booleans() | st.floats() | st.none()


def mappings(values: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.dictionaries(words, values, min_size=1, max_size=4)


@steady(80)
@given(mappings(plain | st.lists(plain | mappings(plain), min_size=1, max_size=3) | mappings(plain)))
def test_what_is_nearly_always_in_an_entry_is_written_as_dvc_writes_it(data: dict[str, Any]) -> None:
    assert entries._text(data, "") == dumps_yaml(data)
    assert "stages:\n" + entries._text(data, "  ") == dumps_yaml({"stages": data})


@steady(80)
@given(st.recursive(scalars, lambda values: st.lists(values, max_size=3) | mappings(values), max_leaves=8))
def test_so_is_anything_else(value: Any) -> None:
    data = {"key": value}
    assert entries._text(data, "") == dumps_yaml(data)


def test_plain_entries_do_not_need_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dvc.utils.serialize.dumps_yaml", None)
    out = {"path": "out/0", "hash": "md5", "md5": "9a0364b9e99bb480dd25e1f0284c8555", "size": 2}
    text = lock_entry("merge@ties", {"cmd": "echo 0 > out/0", "outs": [out]})
    assert text.splitlines()[:4] == ["  merge@ties:", "    cmd: echo 0 > out/0", "    outs:", "    - path: out/0"]


def test_one_list_in_two_places_is_named_as_the_library_names_it() -> None:
    shared = [1, 2]
    data = {"first": shared, "second": shared}
    assert entries._text(data, "") == dumps_yaml(data)
    assert "&id001" in entries._text(data, "")


# What stands twice in an entry: a parameter that params.yaml names by an alias, or two parameters of one value.
shared = st.lists(plain, min_size=1, max_size=3) | mappings(plain)
holders: dict[str, Callable[[Any], Any]] = {
    "keys": lambda one: {"a": one, "b": one},
    "items": lambda one: [one, one],
    "rows": lambda one: [{"a": one}, {"a": one, "b": 1}],
    "deep": lambda one: {"a": {"b": [one]}, "c": one},
    "alone": lambda one: {"a": one},
}


@steady(80)
@given(st.lists(st.tuples(st.sampled_from(sorted(holders)), shared, shared), min_size=1, max_size=4))
def test_lists_that_stand_twice_are_numbered_through_the_file_as_dvc_numbers_them(drawn: list[Any]) -> None:
    stages = {
        f"s{number}": {"cmd": "echo", "params": {"params.yaml": {"p": holders[how](one), "q": holders[how](two)}}}
        for number, (how, one, two) in enumerate(drawn)
    }
    alone = [lock_entry(name, entry) for name, entry in stages.items()]
    whole = dumps_yaml({"schema": "2.0", "stages": stages})
    lines = number_anchors(alone)
    assert lines is not None
    assert join_lock_file(lines) == whole
    # So are the lines of a file, of which one goes and comes back.
    blocks = split_lock_file(whole)
    assert blocks is not None
    again = number_anchors([*list(blocks.values())[1:], blocks["s0"]])
    assert again is not None
    assert join_lock_file(again) == dumps_yaml({"schema": "2.0", "stages": stages | {"s0": stages.pop("s0")}})


@pytest.mark.parametrize("text", ["x: &id001", "- *id001", "a\nb: &id002\nc"])
def test_what_only_looks_like_an_anchor_is_left_as_it_is(text: str) -> None:
    entry = {"cmd": text, "params": {"params.yaml": holders["keys"]([1, 2])}}
    lines = number_anchors([lock_entry("one", entry), lock_entry("two", entry)])
    assert lines is None or join_lock_file(lines) == dumps_yaml(
        {"schema": "2.0", "stages": {"one": entry, "two": deepcopy(entry)}}
    )


def test_an_alias_of_another_entrys_anchor_is_left_to_the_library() -> None:
    one = [1, 2]
    stages = {name: {"cmd": "echo", "params": {"params.yaml": {"p": one}}} for name in ("a", "b")}
    blocks = split_lock_file(dumps_yaml({"schema": "2.0", "stages": stages}))
    assert blocks is not None
    assert number_anchors(blocks.values()) is None


def test_a_lock_file_is_cut_into_its_entries_and_put_together_again() -> None:
    stages: dict[str, Any] = {
        name: {"cmd": f"echo {name}", "deps": [{"path": name, "size": 1}]} for name in ("a", "b@1", "c")
    }
    stages["c"]["cmd"] = ["echo 1", "echo 2"]
    text = dumps_yaml({"schema": "2.0", "stages": stages})
    blocks = split_lock_file(text)
    assert blocks is not None
    assert list(blocks) == ["a", "b@1", "c"]
    assert join_lock_file(blocks.values()) == text
    assert blocks["b@1"] == lock_entry("b@1", stages["b@1"])


@pytest.mark.parametrize(
    "text",
    [
        "",
        "schema: '2.0'\n",
        "# mine\nschema: '2.0'\nstages:\n  a:\n    cmd: x\n",
        "schema: '2.0'\nstages:\n  'true':\n    cmd: x\n",
        "schema: '2.0'\nstages:\n  a:\n    deps: []\n    cmd: x\n",
        "schema: '2.0'\nstages: {}\n",
        "schema: '2.0'\nstages:\n  a:\n    cmd: x\ndatasets: []\n",
    ],
)
def test_a_lock_file_of_another_layout_is_left_to_the_library(text: str) -> None:
    assert split_lock_file(text) is None


def test_what_is_no_plain_value_is_written_as_dvc_does() -> None:
    assert yaml_text({"cmd": "é: 1"}) == dumps_yaml({"cmd": "é: 1"})


EDITS: list[Callable[[str], str]] = [
    lambda line: f"  {line}",
    lambda line: line.removeprefix("  "),
    lambda line: f"{line} # mine",
    lambda line: f"{line} ",
    lambda line: line.replace(": ", ":  "),
    lambda line: line.replace(": ", ": '") + "'",
    lambda line: line.replace("- ", "-   "),
    lambda line: line.partition(":")[0] + ":",
    lambda line: f"{line}\n",
    lambda line: line,
]
items = st.fixed_dictionaries({"path": words, "hash": st.just("md5"), "md5": hashes, "size": st.integers(0)})
values = plain | st.floats(allow_nan=False) | st.booleans() | st.lists(plain, min_size=1, max_size=2) | mappings(plain)
lock_entries = st.fixed_dictionaries(
    {"cmd": commands | st.lists(commands, min_size=1, max_size=2)},
    optional={
        "deps": st.lists(items, min_size=1, max_size=2),
        "params": mappings(mappings(values)),
        "outs": st.lists(items, min_size=1, max_size=2),
    },
).map(lambda entry: {key: entry[key] for key in ("cmd", "deps", "params", "outs") if key in entry})


@steady(40)
@given(st.lists(lock_entries, min_size=1, max_size=2), st.integers(0), st.sampled_from(EDITS))
@example([{"cmd": ["a"]}], 1, EDITS[0])
def test_a_file_that_is_taken_for_dvcs_own_is_one_that_dvc_leaves_as_it_is(
    found: list[dict[str, Any]], place: int, edit: Callable[[str], str]
) -> None:
    text = dumps_yaml({"schema": "2.0", "stages": {f"s{number}": entry for number, entry in enumerate(found)}})
    blocks = split_lock_file(text)
    assert blocks is not None
    # Of some numbers with exponents DVC loses the last digit when it reads and writes its own file.
    assert are_as_dumped(blocks) or dumps_yaml(parse_yaml_for_update(text, "")) != text
    lines = text.splitlines()
    number = 3 + place % (len(lines) - 3)
    lines[number] = edit(lines[number])
    edited = "\n".join(lines) + "\n"
    blocks = split_lock_file(edited)
    if blocks is not None and are_as_dumped(blocks):
        with suppress(YAMLFileCorruptedError):  # one key twice: DVC has refused it before
            assert dumps_yaml(parse_yaml_for_update(edited, "")) == edited
