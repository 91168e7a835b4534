from collections.abc import Sequence

import torch

from tests.laws.layers import merged
from tests.laws.references import Array, Given
from tests.laws.samples import network


def reference(layers: Sequence[Given]) -> list[Array]:
    """Each task's own delta."""
    return [layer.deltas for layer in layers]


def test_individual_gives_each_task_its_own_model_exactly() -> None:
    for layer, parts in zip(network(3), merged("individual", *network(3)), strict=True):
        assert parts.unified is None
        assert list(parts.tasks) == list(layer.tasks)
        for part, delta in zip(parts.tasks.values(), layer.deltas, strict=True):
            assert torch.equal(part.delta(tuple(delta.shape)), delta)
