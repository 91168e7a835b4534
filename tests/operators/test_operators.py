import pytest
import torch

from merganser.errors import InputError
from merganser.linalg.counts import count_of
from merganser.operators.coefficients import task_coefficients
from merganser.operators.drop import drop_and_rescale
from merganser.operators.masks import mask_counts, tall_masks
from merganser.operators.sums import scaled_sum, total
from merganser.operators.ties import disjoint_mean, elect_sign
from tests.laws.layers import uniforms


@pytest.mark.parametrize("n", [1, 7, 48, 100, 768, 1000])
def test_a_count_survives_the_rounding_of_its_fraction(n: int) -> None:
    assert [count_of(k / n, n) for k in range(n + 1)] == list(range(n + 1))


@pytest.mark.parametrize("tasks", [1, 2, 3, 7, 8, 49])
def test_one_over_the_tasks_counts_as_whole_division(tasks: int) -> None:
    assert [count_of(1 / tasks, rank) for rank in range(1000)] == [rank // tasks for rank in range(1000)]


def test_a_count_rounds_down() -> None:
    assert count_of(0.2, 14) == 2
    assert count_of(0.29, 100) == 29


def test_a_sum_does_not_depend_on_the_order_of_the_tasks() -> None:
    deltas = torch.randn(8, 1000, generator=torch.Generator().manual_seed(0))
    order = torch.randperm(8, generator=torch.Generator().manual_seed(1))
    assert torch.equal(total(deltas).float(), total(deltas[order]).float())


def test_a_weighted_sum_weighs_each_task() -> None:
    deltas = torch.tensor([[1.0, 2.0], [10.0, 20.0]])
    assert scaled_sum(deltas, 0.5, [2.0, -1.0]).tolist() == [-4.0, -8.0]


def test_weights_for_another_number_of_tasks_are_an_error() -> None:
    with pytest.raises(ValueError, match="2 weights for 3 tasks"):
        total(torch.ones(3, 2), [1.0, 2.0])


def test_coefficients_follow_the_tasks_order() -> None:
    assert task_coefficients(["a", "b", "c"], {"c": 3.0, "a": 0.0}) == (0.0, 1.0, 3.0)
    assert task_coefficients(["a", "b"], None) == (1.0, 1.0)


def test_coefficients_of_unknown_tasks_are_all_named() -> None:
    with pytest.raises(InputError, match="x, y; the tasks are a, b"):
        task_coefficients(["a", "b"], {"x": 1.0, "a": 1.0, "y": 1.0})


def test_the_larger_total_magnitude_elects_the_sign() -> None:
    deltas = torch.tensor([[3.0, 1.0, 1.0, 0.0], [-1.0, 1.0, -1.0, 0.0], [-1.0, -3.0, 0.0, 0.0]])
    assert elect_sign(deltas).tolist() == [1.0, -1.0, 0.0, 0.0]


def test_draws_take_the_sign_given_and_the_rest_keep_their_sign() -> None:
    deltas = torch.tensor([[3.0, 1.0, -3.0, 0.0], [-1.0, -1.0, 1.0, 0.0]])
    assert elect_sign(deltas).tolist() == [1.0, 0.0, -1.0, 0.0]
    assert elect_sign(deltas, -1).tolist() == [1.0, -1.0, -1.0, -1.0]
    assert elect_sign(deltas, 1).tolist() == [1.0, 1.0, -1.0, 1.0]


def test_the_disjoint_mean_counts_only_those_who_agree() -> None:
    deltas = torch.tensor([[4.0, 1.0, 0.0, -1.0], [2.0, -5.0, 0.0, -2.0], [-5.0, 4.0, 0.0, 0.0]])
    assert disjoint_mean(deltas, elect_sign(deltas, 1)).tolist() == [3.0, 2.5, 0.0, -1.5]
    assert disjoint_mean(deltas, elect_sign(deltas, -1)).tolist() == [3.0, -5.0, 0.0, -1.5]
    assert disjoint_mean(deltas, elect_sign(deltas)).tolist() == [3.0, 0.0, 0.0, -1.5]


def test_what_is_not_dropped_is_rescaled() -> None:
    delta = torch.full((10_000,), 3.0)
    dropped = drop_and_rescale(delta, 0.75, uniforms(delta.shape, seed=0, task="a", parameter="w"))
    assert set(dropped.tolist()) == {0.0, 12.0}


def test_a_task_wants_what_the_others_do_not_drown() -> None:
    deltas = torch.tensor([[1.0, 4.0], [4.0, 1.0], [1.0, 1.0]])
    assert tall_masks(deltas, deltas.sum(0), 1.0)[0].tolist() == [False, True]
    assert mask_counts(deltas, deltas.sum(0), 1.0).tolist() == [1, 1]
    assert mask_counts(deltas, deltas.sum(0), 0.2).tolist() == [3, 3]
