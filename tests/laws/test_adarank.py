"""AdaRank's merge of the values that its learner begins with; tests/learning holds what it learns."""

from collections.abc import Sequence

import pytest

from tests.laws.layers import factored, merged
from tests.laws.references import Array, Given
from tests.laws.samples import assert_same, network


def reference(layers: Sequence[Given]) -> list[Array]:
    """Add with the starting coefficient: all components are kept."""
    return [0.3 * layer.deltas.sum(0) for layer in layers]


@pytest.mark.parametrize("tasks", [1, 2, 8])
def test_before_the_first_step_it_is_task_arithmetic(tasks: int) -> None:
    for layer in network(tasks):
        read = factored(list(layer.deltas), layer.name) if layer.kind == "matrix" else layer
        (found,) = merged("adarank", read)
        assert_same(found, 0.3 * layer.deltas.sum(0), tolerance=1e-5)
