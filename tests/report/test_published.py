"""What papers report beside what was measured: the differences, and which are more than chance, by hand."""

import csv
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from merganser.config.published import Published, Table
from merganser.evaluation.scoring import Score
from merganser.report.formats import write_tables
from merganser.report.rows import Row
from merganser.report.sections.published import Figure, reproduce, tables
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


def test_a_row_stands_beside_an_entry_that_reads_what_it_says() -> None:
    table = TABLE.model_copy(update={"parameters": {"ties": {"reads": "differences/average"}}})
    published = Published(tasks=TASKS, tables=[table])
    assert [list(found.figures) for found in reproduce(published, ROWS, TASKS)] == [["average"]]
    centred = [replace(each, reads="differences/average") for each in ROWS]
    assert [list(found.figures) for found in reproduce(published, centred, TASKS)] == [["average", "ties"]]


def test_a_searched_entry_stands_beside_searched_rows_alone() -> None:
    searched = [ROWS[0], replace(ROWS[1], reads="searches/ties")]
    for dialect, entries in (({}, ["average"]), ({"reads": "searches/ties"}, ["average", "ties"])):
        table = TABLE.model_copy(update={"parameters": {"ties": dialect}})
        (found,) = reproduce(Published(tasks=TASKS, tables=[table]), searched, TASKS)
        assert list(found.figures) == entries


def test_a_row_says_what_its_paper_does_not_state_and_where_other_parameters_are_matrices() -> None:
    dialect = {"matrices": "any_2d", "density": None, "scaling": None}
    table = TABLE.model_copy(update={"parameters": {"ties": dialect}, "notes": {}})
    published = Published(tasks=TASKS, tables=[table])
    unstated = "density 0.4, scaling by default here, not stated there"
    for matrices, notes in (("linear", f"matrices linear here, any_2d there; {unstated}"), ("any_2d", unstated)):
        (found,) = reproduce(published, ROWS, TASKS, matrices)
        assert found.notes == {"ties": notes}


def test_drop_and_memory_rates_stand_beside_ours_and_are_not_judged() -> None:
    table = TABLE.model_copy(update={"columns": ["adr", "amr"], "rows": {"ties": [27.42, 5.87], "average": [None, 0]}})
    ties = replace(ROWS[1], scores=replace(ROWS[1].scores, drop_rate=0.25, profile={"amr": 0.06}))
    (found,) = reproduce(Published(tasks=TASKS, tables=[table]), [ROWS[0], ties], TASKS)
    figures = found.figures["ties"]
    assert {column: (each.ours, each.theirs) for column, each in figures.items()} == {
        "adr": (0.25, pytest.approx(0.2742)),
        "amr": (0.06, pytest.approx(0.0587)),
    }
    assert list(found.figures["average"]) == ["amr"]
    assert (found.judged, found.beyond) == (0, 0)


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


def test_scores_on_unseen_tasks_stand_beside_theirs_and_their_mean_where_the_tasks_are_the_same() -> None:
    changes = {"columns": ["mean", "unseen", "greek"], "rows": {"ties": [57.5, 20.0, 30.0]}, "notes": {}}
    table, ties = TABLE.model_copy(update=changes), ROWS[1]
    unseen: dict[str, Score] = {
        task: {"metric": "accuracy", "value": value, "count": 100, "stderr": 0.03}
        for task, value in (("greek", 0.3), ("street", 0.5))
    }
    rows = [replace(ties, scores=replace(ties.scores, unseen=unseen))]
    (found,) = reproduce(Published(tasks=TASKS, unseen=["greek", "street"], tables=[table]), rows, TASKS)
    figures = found.figures["ties"]
    assert [(figure.ours, figure.beyond) for figure in figures.values()] == [(0.575, False), (0.4, True), (0.3, False)]
    assert figures["unseen"].stderr == pytest.approx(0.03 / 2**0.5)
    (found,) = reproduce(Published(tasks=TASKS, unseen=["greek"], tables=[table]), rows, TASKS)
    assert list(found.figures["ties"]) == ["mean", "greek"]


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
    write_tables(tmp_path, tables(reproduce(Published(tasks=TASKS, tables=[TABLE]), ROWS, TASKS)))
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
