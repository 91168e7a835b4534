from collections.abc import Sequence

import numpy as np
import torch

from merganser.overlays.parts import Dense, Parts
from tests.laws.layers import merged
from tests.laws.references import Array, Given
from tests.laws.samples import network


def reference(layers: Sequence[Given]) -> list[Array]:
    """The tasks' own vectors of what a router mixes, which is the first layer here; task arithmetic elsewhere."""
    return [layer.deltas if layer is layers[0] else 0.3 * layer.deltas.sum(0) for layer in layers]


def test_the_tasks_vectors_are_kept_whole_where_they_are_mixed_and_nowhere_else() -> None:
    layers = network(3)
    first, *others = merged("wemoe", *layers)
    assert isinstance(first, Parts)
    for part, delta in zip(first.tasks.values(), layers[0].deltas, strict=True):
        assert isinstance(part, Dense)
        assert torch.equal(part.values, delta)
    for other, layer in zip(others, layers[1:], strict=True):
        np.testing.assert_allclose(other, 0.3 * layer.deltas.sum(0), rtol=1e-5, atol=1e-9)
