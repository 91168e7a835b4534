"""Figures of papers are refused where they cannot be read as a table of entries and tasks."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from merganser.config.loading import load_params
from merganser.config.published import published_mistakes, read_published
from merganser.errors import InputError
from tests.config.test_params import changed, write

TABLE: dict[str, Any] = {
    "paper": "A paper",
    "table": "Table 1",
    "protocol": "accuracy on the test split",
    "checkpoints": "others",
    "decimals": 1,
    "columns": ["mean", "dark"],
    "rows": {"ties": [72.5, 98.3], "average": [66.1, None]},
}


def saved(folder: Path, tasks: list[str], **changes: Any) -> Path:
    path = folder / "published.yaml"
    path.write_text(yaml.safe_dump({"tasks": tasks, "tables": [TABLE | changes]}))
    return path


def test_a_table_is_read_as_it_stands(tmp_path: Path) -> None:
    (table,) = read_published(saved(tmp_path, ["dark", "light"])).tables
    assert table.rows == {"ties": [72.5, 98.3], "average": [66.1, None]}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"columns": ["mean", "drak"]},
            r"Table 1: columns: .drak. is neither mean nor normalised nor adr nor amr nor one of tasks; "
            r'did you mean "dark"',
        ),
        ({"rows": {"ties": [72.5]}}, r"rows\.ties: expected 2 figures, one a column, got 1"),
        ({"notes": {"tise": "tuned"}}, r'notes\.tise: not in rows; did you mean "ties"'),
        ({"checkpoints": "mine"}, r"published\.yaml: tables\.0\.checkpoints"),
        ({"rows": {"ties": [0.725, 983.0]}}, r"tables\.0\.rows\.ties\.1: .*less than or equal to 200, got 983"),
        ({"protocol": ""}, r"tables\.0\.protocol"),
    ],
)
def test_what_is_no_table_is_refused_by_its_place(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_published(saved(tmp_path, ["dark", "light"], **changes))


def test_figures_of_no_entry_are_named_with_the_nearest_one(tmp_path: Path) -> None:
    content = changed(lambda c: c["methods"].update(ties=c["methods"].pop("ties_20")))
    params = load_params(write(tmp_path, content))
    assert (
        published_mistakes(read_published(saved(tmp_path, list(params.tasks), columns=["mean", "greek"])), params) == []
    )
    rows = {"tise": [1.0, 2.0]}
    other = read_published(saved(tmp_path, ["dark", "light"], rows=rows))
    assert published_mistakes(other, params) == [
        "tasks: expected those of params.yaml, digits, greek, signs, street",
        "Table 1: rows: no entry 'tise'; did you mean \"ties\"?",
    ]


def test_the_unseen_tasks_are_those_of_the_params(tmp_path: Path) -> None:
    content = changed(lambda c: c["methods"].update(ties=c["methods"].pop("ties_20")))
    params = load_params(write(tmp_path, content))
    path = saved(tmp_path, list(params.tasks), columns=["unseen", "attic"])
    with pytest.raises(InputError, match="'unseen' is neither mean nor normalised nor adr nor amr nor one of tasks"):
        read_published(path)
    path.write_text(path.read_text() + "unseen: [attic]\n")
    assert published_mistakes(read_published(path), params) == ["unseen: expected those of params.yaml, none"]


def test_parameters_that_the_entrys_method_does_not_have_are_named(tmp_path: Path) -> None:
    content = changed(lambda c: c["methods"].update(ties=c["methods"].pop("ties_20")))
    params = load_params(write(tmp_path, content))
    given = {"parameters": {"ties": {"densty": 0.2, "reads": "deltas"}}, "columns": ["mean", "greek"]}
    assert published_mistakes(read_published(saved(tmp_path, list(params.tasks), **given)), params) == [
        "Table 1: parameters.ties: ties has no 'densty'; did you mean \"density\"?"
    ]


def test_rows_may_be_of_the_entries_of_another_comparison_too(tmp_path: Path) -> None:
    params = load_params(write(tmp_path, changed(lambda c: c["methods"].update(ties=c["methods"].pop("ties_20")))))
    other = load_params(write(tmp_path, changed(lambda c: c["methods"].update(drm=c["methods"].pop("ties_20")))))
    published = read_published(saved(tmp_path, list(params.tasks), columns=["mean"], rows={"drm": [1.0]}))
    assert published_mistakes(published, params) == ["Table 1: rows: no entry 'drm'"]
    assert published_mistakes(published, params, other) == []


def test_values_are_whole_numbers_words_truths_or_not_stated(tmp_path: Path) -> None:
    values = {"k": 2, "scaling": 0.3, "inner": "ties", "elect": False, "density": None}
    (table,) = read_published(saved(tmp_path, ["dark"], parameters={"ties": values})).tables
    assert table.parameters == {"ties": values}
    assert {key: type(value) for key, value in table.parameters["ties"].items()} == {
        key: type(value) for key, value in values.items()
    }
