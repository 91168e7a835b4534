"""What papers report beside what was measured: the differences, and which are more than chance, by hand."""

import csv
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from merganser.config.published import Published, Table
from merganser.evaluation.scoring import Score
from merganser.report.published import Figure, reproduce
from merganser.report.rows import Row
from merganser.report.tables import write_published
from tests.report.test_plots import row as plain_row

TABLE = Table(
    paper="A paper",
    table="Table 1",
    protocol="accuracy",
    checkpoints="others",
    decimals=1,
    columns=["mean", "dark", "light"],
    rows={"ties": [60.0, 50.0, None], "gone": [1.0, 1.0, 1.0], "average": [40.0, 30.2, 50.0]},
    parameters={"ties": {"density": 0.2}},
    notes={"average": "tuned"},
)
TASKS = ["dark", "light"]


def row(entry: str, values: Mapping[str, float], stderr: float | None = 0.01) -> Row:
    """Make an entry with these scores, each with this standard error."""
    made = plain_row(entry, entry, 0.0, 0.0)
    by_task: dict[str, Score] = {
        task: {"metric": "accuracy", "value": value, "count": 100, "stderr": stderr} for task, value in values.items()
    }
    return replace(made, scores=replace(made.scores, by_task=by_task), values={"density": 0.4})


ROWS = [row("average", {"dark": 0.3, "light": 0.5}), row("ties", {"dark": 0.55, "light": 0.6})]


def test_entries_stand_beside_what_a_paper_reports_of_them() -> None:
    (found,) = reproduce(Published(tasks=TASKS, tables=[TABLE]), ROWS, TASKS)
    assert {entry: list(figures) for entry, figures in found.figures.items()} == {
        "average": ["mean", "dark", "light"],
        "ties": ["mean", "dark"],
    }
    dark, mean = found.figures["ties"]["dark"], found.figures["ties"]["mean"]
    assert (dark.ours, dark.theirs, dark.difference) == (0.55, 0.5, pytest.approx(0.05))
    assert (mean.ours, mean.theirs) == (pytest.approx(0.575), 0.6)
    assert mean.stderr == pytest.approx(0.01 / 2**0.5)
    assert found.notes == {"ties": "density 0.4 here, 0.2 there", "average": "tuned"}
    # 0.05 and 0.025 against 1.96 standard errors of 0.01 and 0.007, and half a digit; the others are within
    assert [figure.beyond for figure in found.compared] == [False, False, False, True, True]
    assert found.beyond == 2


def test_a_row_that_was_computed_from_other_vectors_says_so() -> None:
    table = TABLE.model_copy(update={"parameters": {"ties": {"reads": "differences/average"}}, "notes": {}})
    (found,) = reproduce(Published(tasks=TASKS, tables=[table]), ROWS, TASKS)
    assert found.notes == {"ties": f"reads {ROWS[1].reads} here, differences/average there"}


def test_what_rounding_explains_is_no_difference() -> None:
    assert Figure(0.5004, 0.5, 0.0, 0.0005).beyond is False
    assert Figure(0.5006, 0.5, 0.0, 0.0005).beyond is True


def test_a_difference_without_a_sampling_error_is_not_judged() -> None:
    (found,) = reproduce(
        Published(tasks=TASKS, tables=[TABLE]), [row("average", {"dark": 0.9, "light": 0.9}, None)], TASKS
    )
    assert {figure.beyond for figure in found.compared} == {None}


def test_means_over_other_tasks_are_not_compared() -> None:
    (found,) = reproduce(Published(tasks=[*TASKS, "red"], tables=[TABLE]), ROWS, TASKS)
    assert found.columns == TASKS


def test_normalised_means_are_compared_where_the_tasks_have_models_of_their_own() -> None:
    table = TABLE.model_copy(update={"columns": ["normalised"], "rows": {"ties": [96.0], "average": [70.0]}})
    ties, average = ROWS[1], ROWS[0]
    scores = replace(ties.scores, normalised=0.9, normalised_error=0.02)
    rows = [replace(ties, scores=scores), replace(average, scores=replace(average.scores, normalised=None))]
    (found,) = reproduce(Published(tasks=TASKS, tables=[table]), rows, TASKS)
    assert {entry: list(figures) for entry, figures in found.figures.items()} == {"ties": ["normalised"]}
    figure = found.figures["ties"]["normalised"]
    assert (figure.ours, figure.theirs, figure.stderr, figure.beyond) == (0.9, 0.96, 0.02, True)


def test_a_table_of_other_entries_is_left_out() -> None:
    assert reproduce(Published(tasks=TASKS, tables=[TABLE]), [row("emr", {"dark": 0.1, "light": 0.2})], TASKS) == []


def test_lines_say_which_table_and_protocol_each_figure_is_of(tmp_path: Path) -> None:
    write_published(tmp_path, reproduce(Published(tasks=TASKS, tables=[TABLE]), ROWS, TASKS))
    lines = list(csv.DictReader((tmp_path / "published.csv").read_text().splitlines()))
    assert len(lines) == 5
    numbers = {key: float(lines[3].pop(key)) for key in ("ours", "published", "difference", "stderr")}
    assert numbers == pytest.approx({"ours": 0.575, "published": 0.6, "difference": -0.025, "stderr": 0.01 / 2**0.5})
    assert lines[3] == {
        "paper": "A paper",
        "table": "Table 1",
        "protocol": "accuracy",
        "checkpoints": "others",
        "entry": "ties",
        "column": "mean",
        "beyond": "True",
        "note": "density 0.4 here, 0.2 there",
    }
