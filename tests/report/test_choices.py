"""What to take for each budget, held to a count by hand."""

from dataclasses import replace

import numpy as np
import pytest

from merganser.evaluation.examples import Results
from merganser.measures.significance import Pairs, compare_models, mean_of_tasks
from merganser.report.rows import Row
from merganser.report.sections.take import Choice, make_choices, ranks, standings
from tests.report.test_plots import row


def results(right: int, shift: int = 0) -> Results:
    """Give 200 examples of which this many are right, beginning at one."""
    return Results(score=np.roll((np.arange(200) < right).astype(float), shift))


RIGHT = {"base": 20, "ties": 100, "tsv_m": 110, "cheap": 160, "big": 164, "learned": 190}
SHIFTS = {"ties": 90}  # right on others: the difference is within the error
ROWS = [
    row("base", "base", 0.10, 0.0),
    row("ties", "ties", 0.50, 0.0),
    row("tsv_m", "tsv_m", 0.55, 0.0),
    row("cheap", "svd", 0.80, 0.04),
    row("big", "svd", 0.82, 0.4),
    replace(row("learned", "twin", 0.95, 0.3), data="VDI"),
]


@pytest.fixture(scope="module")
def pairs() -> Pairs:
    return mean_of_tasks([compare_models("accuracy", [results(RIGHT[r.entry], SHIFTS.get(r.entry, 0)) for r in ROWS])])


def names(rows: list[Row]) -> list[str]:
    return [each.entry for each in rows]


@pytest.fixture(scope="module")
def choices(pairs: Pairs) -> list[Choice]:
    return make_choices(ROWS, pairs)


def test_each_budget_has_its_best_and_those_that_tests_do_not_tell_from_it(choices: list[Choice]) -> None:
    alone = {choice.budget.key: choice for choice in choices if choice.data == "none"}
    assert {key: names(choice.members) for key, choice in alone.items()} == {
        "one_model": ["tsv_m", "ties"],
        "1_percent": ["tsv_m", "ties"],
        "5_percent": ["cheap"],
        "any_size": ["big", "cheap"],  # 4 of 200 apart, p = 0.125
    }
    assert [choice.more for choice in alone.values()] == [True, False, True, True]
    assert alone["any_size"].smallest is ROWS[3]
    assert alone["5_percent"].smallest is None
    assert alone["any_size"].p == [pytest.approx(0.134, abs=0.01)]


def test_entries_with_data_are_chosen_only_where_data_are_allowed(choices: list[Choice]) -> None:
    allowed = {choice.budget.key: names(choice.members) for choice in choices if choice.data == "any"}
    assert allowed["any_size"] == ["learned"]
    assert allowed["5_percent"] == ["cheap"]
    assert {choice.data for choice in make_choices(ROWS[:2], _few(2))} == {"none"}


def test_a_budget_without_entries_has_no_best() -> None:
    choices = make_choices([ROWS[0], ROWS[4]], _few(2))
    assert [choice.best and choice.best.entry for choice in choices] == [None, None, None, "big"]
    assert make_choices([ROWS[0]], _few(1))[3].members == []


def test_ranks_say_who_is_better_and_who_is_worse_by_more_than_chance(pairs: Pairs) -> None:
    assert ranks(ROWS, pairs) == {"learned": (1, 1), "big": (2, 3), "cheap": (2, 3), "tsv_m": (4, 5), "ties": (4, 5)}


def test_standings_name_the_budgets_of_which_an_entry_is_as_good_as_any(choices: list[Choice]) -> None:
    found = standings([choice for choice in choices if choice.data == "none"])
    assert [(choice.budget.key, is_best) for choice, is_best in found["cheap"]] == [
        ("5_percent", True),
        ("any_size", False),
    ]
    assert "learned" not in found


def _few(count: int) -> Pairs:
    nothing = np.zeros((count, count))
    return Pairs(nothing, nothing, np.ones((count, count)), nothing)
