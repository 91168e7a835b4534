"""A task's new name is written wherever params.yaml says the old one, and nothing else of the file changes."""

import pytest

from merganser.config.text import renamed
from merganser.errors import InputError

TEXT = """# two tasks
tasks: # dark is the first
  dark: {source: hub/dark, data: {source: datasets/dark, templates: ["a {} image."]}} # of dark pictures
  light:
    source: hub/light
    data: {source: datasets/light, templates: ["a dark {} image."]}
vocabularies: {all: {source: hub/base, tokenizer: dark, rows: {"<a>": dark, "<b>": light}}}
methods:
  dark: {method: task_arithmetic, reads: deltas, scaling: {dark: 0.3, light: 0.5}}
  ties: {method: ties, reads: deltas, coefficients: {"dark": 2}, layers: {dark: {density: 0.5}}}
searches:
  ties: {method: ties, of: deltas, over: {coefficients: [{dark: 1, light: 1}, {dark: 2}]}}
"""


def test_a_task_gets_its_name_everywhere_and_comments_and_other_names_stay() -> None:
    expected = (
        TEXT.replace("  dark: {source", "  dusk: {source")
        .replace("tokenizer: dark", "tokenizer: dusk")
        .replace('"<a>": dark', '"<a>": dusk')
        .replace("scaling: {dark:", "scaling: {dusk:")
        .replace('{"dark": 2}', "{dusk: 2}")
        .replace("[{dark: 1, light: 1}, {dark: 2}]", "[{dusk: 1, light: 1}, {dusk: 2}]")
    )
    assert renamed(TEXT, "dark", "dusk", "params.yaml") == expected


def test_a_name_that_yaml_takes_for_something_else_is_quoted() -> None:
    assert "  '1': {source: hub/dark" in renamed(TEXT, "dark", "1", "params.yaml")


@pytest.mark.parametrize(
    ("text", "old", "new", "said"),
    [
        (TEXT, "drak", "dusk", "params.yaml: no task is called 'drak'; did you mean \"dark\""),
        (TEXT, "dark", "light", "params.yaml: a task is called 'light' already"),
        ("base: {}\n", "dark", "dusk", "params.yaml: no task is called 'dark'"),
    ],
)
def test_what_cannot_be_renamed_is_refused(text: str, old: str, new: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        renamed(text, old, new, "params.yaml")
