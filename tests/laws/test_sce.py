from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from tests.laws.layers import matrices
from tests.laws.references import Array, Given, counted, largest
from tests.laws.samples import assert_same, joined, merged_vector, network

CASES: list[dict[str, Any]] = [{"density": 0.1}]


def reference(layers: Sequence[Given], *, density: float, scaling: float) -> list[Array]:
    """Select by variance, calculate mean squares, erase minority signs, layer by layer."""
    merged = []
    for layer in layers:
        deltas = layer.deltas.reshape(len(layer.tasks), -1)
        if density < 1:
            variance = np.where((deltas == deltas[0]).all(0), 0, deltas.var(0))
            deltas = deltas * largest(variance, counted(density, np.count_nonzero(variance)))
        weights = (deltas**2).mean(1)
        sign = np.where(deltas.sum(0) >= 0, 1, -1)
        agreeing = weights[:, None] * (deltas * sign > 0)
        total = agreeing.sum(0)
        merged.append(scaling * ((agreeing * deltas).sum(0) / np.where(total > 0, total, 1)))
    return [found.reshape(layer.deltas.shape[1:]) for found, layer in zip(merged, layers, strict=True)]


def test_sce_by_hand() -> None:
    # The variances are 4, 1, 0 and 9: half of the three that differ at all is one entry, at 0.7 two.
    deltas = torch.tensor([[[4.0, 1.0, 5.0, 3.0]], [[0.0, -1.0, 5.0, -3.0]]])
    layer = matrices(list(deltas))
    assert merged_vector("sce", [layer], density=0.5).tolist() == [0, 0, 0, 3]  # the signs cancel: the positive wins
    # Mean squares of what is selected: (16 + 9) / 4 and 9 / 4; one task is left in each.
    assert merged_vector("sce", [layer], density=0.7).tolist() == [4, 0, 0, 3]
    # All entries: weights 51 / 4 and 35 / 4, which both have a say in the third only.
    assert merged_vector("sce", [layer]).tolist() == pytest.approx([4, 1, 5, 3])


def test_the_tasks_weigh_by_their_mean_squares() -> None:
    layer = matrices([torch.tensor([[2.0, 2.0]]), torch.tensor([[1.0, 1.0]])])
    assert merged_vector("sce", [layer]).tolist() == pytest.approx([(4 * 2 + 1) / 5] * 2)


@pytest.mark.parametrize("tasks", [1, 4])
def test_equal_models_at_density_one_are_kept(tasks: int) -> None:
    layers = network(1)
    same = [matrices([x.deltas[0].reshape(1, -1)] * tasks, x.name) for x in layers]
    assert_same(merged_vector("sce", same), joined(layers)[0])
    assert tasks == 1 or not merged_vector("sce", same, density=0.9).any()  # they differ nowhere
