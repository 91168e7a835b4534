from collections.abc import Sequence

import pytest
import torch

from merganser.errors import InputError
from tests.laws.references import Array, Given
from tests.laws.samples import assert_same, in_pieces, joined, merged_vector, network


def reference(layers: Sequence[Given], scaling: float) -> list[Array]:
    """Add and scale."""
    return [scaling * layer.deltas.sum(0) for layer in layers]


@pytest.mark.parametrize("tasks", [1, 2, 8])
def test_task_arithmetic_is_the_scaled_sum_of_the_deltas(tasks: int) -> None:
    layers = network(tasks)
    assert_same(merged_vector("task_arithmetic", layers), 0.4 * joined(layers).sum(0))


def test_one_task_with_scaling_one_is_its_own_model() -> None:
    layers = network(1)
    assert torch.equal(merged_vector("task_arithmetic", layers, scaling=1.0), joined(layers)[0])


def test_task_arithmetic_by_hand() -> None:
    layers = in_pieces(torch.tensor([[1.0, 2.0, -3.0, 0.0], [3.0, -2.0, 1.0, 1.0]]))
    assert merged_vector("task_arithmetic", layers, scaling=0.5).tolist() == [2.0, 0.0, -1.0, 0.5]


def test_a_negative_coefficient_forgets_a_task_and_the_others_keep_one() -> None:
    layers = network(3)
    first, second, third = joined(layers)
    forgotten = merged_vector("task_arithmetic", layers, scaling=0.5, coefficients={"task1": -2.0})
    assert_same(forgotten, 0.5 * (first - 2 * second + third))


def test_opposite_tasks_cancel_whatever_lies_between_them() -> None:
    layers = in_pieces(torch.tensor([[1e8, 1e8, 1.0, 1.0], [1.0, 1.0, 1.0, 1.0], [-1e8, -1e8, 1.0, 1.0]]))
    assert merged_vector("task_arithmetic", layers, scaling=1.0).tolist() == [1.0, 1.0, 3.0, 3.0]


def test_coefficients_of_unknown_tasks_are_refused_by_name() -> None:
    with pytest.raises(InputError, match=r"coefficients: no such task: cars, dtd; the tasks are task0, task1"):
        merged_vector("task_arithmetic", network(2), coefficients={"cars": 1.0, "task0": 1.0, "dtd": 0.5})
