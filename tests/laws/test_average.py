from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import torch

from merganser.errors import InputError
from tests.laws.references import Array, Given, shares
from tests.laws.samples import assert_same, in_pieces, merged_vector, network

CASES: list[dict[str, Any]] = [
    {"coefficients": {"task0": 0.5, "task1": 2.0}},
    {"coefficients": {"task0": 2.0, "task1": -0.5}},
    {"coefficients": "inverse_norm"},
]


def reference(layers: Sequence[Given], *, coefficients: Mapping[str, float] | str | None = None) -> list[Array]:
    """Average the deltas by their weights."""
    return [np.average(layer.deltas, axis=0, weights=shares(layer, coefficients)) for layer in layers]


@pytest.mark.parametrize("tasks", [1, 2, 8])
def test_average_equals_task_arithmetic_with_scaling_one_over_the_tasks(tasks: int) -> None:
    layers = network(tasks)
    assert torch.equal(merged_vector("average", layers), merged_vector("task_arithmetic", layers, scaling=1 / tasks))


def test_coefficients_are_weights_of_the_mean() -> None:
    layers = network(3, dtype=torch.float64)
    given = {"task0": 3.0, "task1": 0.0}
    weighed = merged_vector("average", layers, coefficients=given)
    tenfold = {task: 10 * given.get(task, 1.0) for task in layers[0].tasks}
    assert_same(merged_vector("average", layers, coefficients=tenfold), weighed, 1e-12)
    all_of_one = merged_vector("average", layers, coefficients={"task1": 0.0, "task2": 0.0})
    assert_same(all_of_one, merged_vector("task_arithmetic", layers[:], coefficients={"task1": 0.0, "task2": 0.0},
                                          scaling=1.0), 1e-12)  # fmt: skip


@pytest.mark.parametrize("given", [{"task0": 1.0, "task1": -1.0}, {"task0": 0.3, "task1": -0.1, "task2": -0.2}])
def test_weights_that_add_up_to_nothing_are_refused(given: dict[str, float]) -> None:
    with pytest.raises(InputError, match="coefficients: they add up to 0, so the mean would divide by 0"):
        merged_vector("average", network(len(given)), coefficients=given)


def test_average_by_hand() -> None:
    layers = in_pieces(torch.tensor([[1.0, 2.0, -3.0, 0.0], [3.0, -2.0, 1.0, 1.0]]))
    assert merged_vector("average", layers).tolist() == [2.0, 0.0, -1.0, 0.5]
    assert merged_vector("average", layers, coefficients={"task0": 3.0}).tolist() == [1.5, 1.0, -2.0, 0.25]
