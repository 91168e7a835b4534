from collections.abc import Sequence

import numpy as np
import pytest
import torch

from tests.laws.references import Array, Given
from tests.laws.samples import assert_same, in_pieces, joined, merged_vector, network


def reference(layers: Sequence[Given], *, scaling: float) -> list[Array]:
    """Take each entry's change of largest magnitude, the positive one of two."""
    merged = []
    for layer in layers:
        largest = np.abs(layer.deltas).max(0)
        merged.append(scaling * np.where((layer.deltas == largest).any(0), largest, -largest))
    return merged


def test_magmax_by_hand() -> None:
    layers = in_pieces(torch.tensor([[1.0, -2.0, 3.0, 0.0], [-4.0, 1.0, -3.0, 0.5], [2.0, 1.5, 0.0, 0.0]]))
    assert merged_vector("magmax", layers, scaling=1.0).tolist() == [-4.0, -2.0, 3.0, 0.5]
    assert merged_vector("magmax", layers).tolist() == [-2.0, -1.0, 1.5, 0.25]


def test_one_task_is_its_own_model() -> None:
    layers = network(1)
    assert torch.equal(merged_vector("magmax", layers, scaling=1.0), joined(layers)[0])


@pytest.mark.parametrize("tasks", [2, 5])
def test_tasks_that_change_different_entries_are_added_up(tasks: int) -> None:
    whole = torch.randn(60, generator=torch.Generator().manual_seed(0))
    masks = torch.arange(60) % tasks == torch.arange(tasks).unsqueeze(1)
    assert_same(merged_vector("magmax", in_pieces(whole * masks), scaling=1.0), whole.double())
