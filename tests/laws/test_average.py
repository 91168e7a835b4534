from collections.abc import Sequence

import pytest
import torch

from tests.laws.references import Array, Given
from tests.laws.samples import in_pieces, merged_vector, network


def reference(layers: Sequence[Given]) -> list[Array]:
    """Average the deltas."""
    return [layer.deltas.mean(0) for layer in layers]


@pytest.mark.parametrize("tasks", [1, 2, 8])
def test_average_equals_task_arithmetic_with_scaling_one_over_the_tasks(tasks: int) -> None:
    layers = network(tasks)
    assert torch.equal(merged_vector("average", layers), merged_vector("task_arithmetic", layers, scaling=1 / tasks))


def test_average_by_hand() -> None:
    layers = in_pieces(torch.tensor([[1.0, 2.0, -3.0, 0.0], [3.0, -2.0, 1.0, 1.0]]))
    assert merged_vector("average", layers).tolist() == [2.0, 0.0, -1.0, 0.5]
