"""What the report says of the numbers before."""

import json
from pathlib import Path
from typing import Any

import pytest

from merganser.report.changes import Change, Changes, read_changes

PREVIOUS_METRICS = {
    "ties": {"accuracy": {"dark": 0.5, "light": 0.25}, "mean": 0.375, "normalised_score": None},
    "gone": {"accuracy": {"dark": 1.0}, "mean": 1.0},
}
NOW = {
    "ties": {"accuracy": {"dark": 0.75, "light": 0.25}, "mean": 0.5, "normalised_score": None},
    "new": {"mean": 0.125},
}


def kept(folder: Path, **content: Any) -> Path:
    path = folder / "previous_metrics.json"
    path.write_text(
        json.dumps(
            {"run": "blue-fox", "numbers": PREVIOUS_METRICS, "causes": {"fetch@dark": ["dep changed"]}} | content
        )
    )
    return path


def test_each_number_that_differs_is_told_before_and_after(tmp_path: Path) -> None:
    changes = read_changes(kept(tmp_path), "blue-fox", NOW)
    assert changes == Changes(
        run="blue-fox",
        causes={"fetch@dark": ["dep changed"]},
        changed=[
            Change("ties", "accuracy/dark", 0.5, 0.75),
            Change("ties", "mean", 0.375, 0.5),
            Change("new", "mean", None, 0.125),
            Change("gone", "accuracy/dark", 1.0, None),
            Change("gone", "mean", 1.0, None),
        ],
        same=2,
    )
    assert [change.difference for change in changes.changed] == [0.25, 0.125, None, None, None]


def test_numbers_that_stayed_are_said_to_have_stayed(tmp_path: Path) -> None:
    changes = read_changes(kept(tmp_path), "blue-fox", PREVIOUS_METRICS)
    assert changes
    assert (changes.changed, changes.same) == ([], 6)


@pytest.mark.parametrize(("run", "content"), [(None, {}), ("red-fox", {}), ("blue-fox", {"numbers": {}})])
def test_nothing_is_said_of_numbers_that_this_run_did_not_find(
    tmp_path: Path, run: str | None, content: dict[str, Any]
) -> None:
    assert read_changes(kept(tmp_path, **content), run, NOW) is None


def test_nothing_is_said_where_nothing_was_kept(tmp_path: Path) -> None:
    assert read_changes(tmp_path / "previous_metrics.json", "blue-fox", NOW) is None
