from collections.abc import Sequence

import numpy as np

from tests.laws.references import Array, Given
from tests.laws.samples import merged_vector, network


def reference(layers: Sequence[Given]) -> list[Array]:
    """Change nothing of the merged model: tests/at_run_time/test_surgery.py has the laws of its bottlenecks."""
    return [np.zeros(layer.deltas.shape[1:]) for layer in layers]


def test_the_merged_model_stays_as_it_is() -> None:
    assert not merged_vector("surgery", network(3)).any()
