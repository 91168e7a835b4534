"""The subsets of tasks that a study merges."""

from math import comb

import pytest

from merganser.config.points import values_for
from merganser.studies.rank import fractions_of
from merganser.studies.subsets import all_subsets, draw_subsets

TASKS = ["signs", "greek", "street", "digits", "textures", "landcover", "armenian", "counting"]


@pytest.mark.parametrize("count", range(2, 9))
def test_subsets_are_distinct_and_of_every_size_and_no_more_than_asked_for(count: int) -> None:
    tasks = TASKS[:count]
    drawn = all_subsets(tasks, 10, seed=3)
    assert len(set(drawn)) == len(drawn)
    assert all(subset == tuple(sorted(set(subset))) and set(subset) <= set(tasks) for subset in drawn)
    sizes = [len(subset) for subset in drawn]
    assert {size: sizes.count(size) for size in sizes} == {
        size: min(10, comb(count, size)) for size in range(2, count + 1)
    }


def test_the_draw_depends_on_the_seed_and_not_on_the_order_of_the_tasks() -> None:
    drawn = all_subsets(TASKS, 4, seed=0)
    assert all_subsets(TASKS[::-1], 4, seed=0) == drawn
    assert all_subsets(TASKS, 4, seed=1) != drawn


def test_more_subsets_begin_with_the_same_ones() -> None:
    assert draw_subsets(TASKS, 4, 9, seed=0)[:5] == draw_subsets(TASKS, 4, 5, seed=0)


def test_every_task_and_pair_is_drawn_as_often_as_any_other() -> None:
    """Over many seeds: 28 pairs, 3 of them a seed."""
    counts = dict.fromkeys(draw_subsets(TASKS, 2, 28, seed=0), 0)
    for seed in range(1400):
        for pair in draw_subsets(TASKS, 2, 3, seed):
            counts[pair] += 1
    assert len(counts) == 28
    # mean 150, standard deviation sqrt(1400 * 3/28 * 25/28) = 11.6
    assert all(abs(count - 150) < 5 * 11.6 for count in counts.values())


def test_one_task_is_its_own_only_subset() -> None:
    assert all_subsets(["signs"], 4, seed=0) == [("signs",)]


def test_maps_from_tasks_keep_the_tasks_that_are_merged() -> None:
    values = {"density": 0.2, "coefficients": {"greek": 0.5, "signs": 2.0}, "scaling": 0.3}
    assert values_for(values, ("digits", "signs")) == {"density": 0.2, "coefficients": {"signs": 2.0}, "scaling": 0.3}


def test_the_shares_of_a_rank_sweep_end_with_the_whole_delta() -> None:
    assert fractions_of([0.3, 0.01]) == fractions_of([1.0, 0.01, 0.3, 0.3]) == [0.01, 0.3, 1.0]
    assert fractions_of([]) == []
