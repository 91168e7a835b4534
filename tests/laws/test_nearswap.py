from collections.abc import Sequence

import numpy as np
import pytest
import torch

from tests.laws.references import Array, Given
from tests.laws.samples import assert_same, in_pieces, joined, merged_vector, network


def reference(layers: Sequence[Given], *, limit: float, scaling: float) -> list[Array]:
    """Keep each entry's sign, and its size up to the limit."""
    return [scaling * (np.sign(layer.deltas) * np.minimum(np.abs(layer.deltas), limit)).sum(0) for layer in layers]


CASES = [{"limit": 0.01}, {"limit": 1e-8}]


def test_nearswap_by_hand() -> None:
    layers = in_pieces(torch.tensor([[0.5, -0.2, 3.0, -2.0], [0.5, 0.1, -3.0, -0.3]]))
    assert merged_vector("nearswap", layers, limit=0.4).tolist() == pytest.approx([0.8, -0.1, 0.0, -0.7])
    assert merged_vector("nearswap", layers, limit=0.4, scaling=0.5).tolist() == pytest.approx([0.4, -0.05, 0, -0.35])


def test_within_the_limit_it_is_task_arithmetic_and_no_entry_moves_beyond_it() -> None:
    layers = network(3)
    assert_same(merged_vector("nearswap", layers, limit=1.0), joined(layers).sum(0))
    assert float(merged_vector("nearswap", layers, limit=1e-3).abs().max()) <= 3e-3 * (1 + 1e-6)
