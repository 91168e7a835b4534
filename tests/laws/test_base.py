from collections.abc import Sequence

import numpy as np

from tests.laws.references import Array, Given
from tests.laws.samples import merged_vector, network


def reference(layers: Sequence[Given]) -> list[Array]:
    """Change nothing."""
    return [np.zeros(layer.deltas.shape[1:]) for layer in layers]


def test_base_changes_nothing() -> None:
    assert not merged_vector("base", network(3)).any()
