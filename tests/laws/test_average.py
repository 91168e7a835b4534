import pytest
import torch

from tests.laws.samples import assert_same, in_pieces, joined, merged_vector, network


@pytest.mark.parametrize("tasks", [1, 2, 8])
def test_average_is_the_mean_of_the_deltas(tasks: int) -> None:
    layers = network(tasks)
    assert_same(merged_vector("average", layers), joined(layers).sum(0) / tasks)


@pytest.mark.parametrize("tasks", [1, 2, 8])
def test_average_equals_task_arithmetic_with_scaling_one_over_the_tasks(tasks: int) -> None:
    layers = network(tasks)
    assert torch.equal(merged_vector("average", layers), merged_vector("task_arithmetic", layers, scaling=1 / tasks))


def test_average_by_hand() -> None:
    layers = in_pieces(torch.tensor([[1.0, 2.0, -3.0, 0.0], [3.0, -2.0, 1.0, 1.0]]))
    assert merged_vector("average", layers).tolist() == [2.0, 0.0, -1.0, 0.5]
