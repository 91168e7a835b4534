"""What is recalibrated keeps its weights; tests/learning/test_recalibration.py has the laws of its statistics."""

from collections.abc import Sequence

import numpy as np

from tests.laws.references import Array, Given
from tests.laws.samples import merged_vector, network


def reference(layers: Sequence[Given]) -> list[Array]:
    """Change no weight."""
    return [np.zeros(layer.deltas.shape[1:]) for layer in layers]


def test_weights_stay() -> None:
    assert not merged_vector("recalibrate", network(3)).any()
