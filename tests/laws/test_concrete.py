"""Concrete's merge of the values that its learner begins with; tests/learning holds what it learns."""

from collections.abc import Sequence

import pytest

from tests.laws.references import Array, Given
from tests.laws.samples import assert_same, joined, merged_vector, network


def reference(layers: Sequence[Given]) -> list[Array]:
    """Add and scale: a mask of equal entries over its mean is one everywhere."""
    return [0.3 * layer.deltas.sum(0) for layer in layers]


@pytest.mark.parametrize("tasks", [1, 2, 8])
def test_before_the_first_step_it_is_task_arithmetic(tasks: int) -> None:
    layers = network(tasks)
    assert_same(merged_vector("concrete", layers), 0.3 * joined(layers).sum(0))
