from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np
import pytest
import torch

from tests.laws.layers import matrices
from tests.laws.references import Array, Given
from tests.laws.samples import assert_same, merged_vector, network

CASES: list[dict[str, Any]] = [{"granularity": "row", "scaling": 0.5}]


def stocked(deltas: Array) -> Array:
    """The paper's interpolation ratio, by the mean cosine of all pairs of vectors (T, n), times their mean."""
    tasks = len(deltas)
    found = []
    for one, other in combinations(deltas, 2):
        lengths = np.linalg.norm(one) * np.linalg.norm(other)
        found.append(one @ other / lengths if lengths else 0.0)
    cosine = max(0.0, np.mean(found)) if found else 1.0
    return tasks * cosine / (1 + (tasks - 1) * cosine) * deltas.mean(0)


def reference(layers: Sequence[Given], *, granularity: str, scaling: float) -> list[Array]:
    """Go towards the mean, parameter by parameter or row by row of what has rows."""
    merged = []
    for layer in layers:
        shape = layer.deltas.shape[1:]
        length = shape[-1] if granularity == "row" and len(shape) > 1 else layer.deltas[0].size
        rows = layer.deltas.reshape(len(layer.tasks), -1, length)
        merged.append(scaling * np.stack([stocked(rows[:, g]) for g in range(rows.shape[1])]).reshape(shape))
    return merged


def test_model_stock_by_hand() -> None:
    # At 60 degrees of two models the ratio is 2 * 0.5 / 1.5: two thirds of the way to the mean.
    deltas = torch.tensor([[[1.0, 0.0]], [[0.5, 3**0.5 / 2]]])
    assert merged_vector("model_stock", [matrices(list(deltas))]).tolist() == pytest.approx([0.5, 3**0.5 / 6])


@pytest.mark.parametrize("granularity", ["parameter", "row"])
def test_equal_models_are_kept_and_those_at_right_angles_leave_the_base(granularity: str) -> None:
    layers = [replace(x, deltas=x.deltas[:1].expand_as(x.deltas).contiguous()) for x in network(3)]
    own = torch.cat([x.deltas[0].double().flatten() for x in layers])
    assert_same(merged_vector("model_stock", layers, granularity=granularity), own)
    apart = matrices([torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 2.0]])])
    assert not merged_vector("model_stock", [apart], granularity=granularity).any()


def test_models_that_point_away_from_each_other_leave_the_base() -> None:
    opposite = matrices([torch.tensor([[1.0, 2.0]]), torch.tensor([[-1.0, -1.9]])])
    assert not merged_vector("model_stock", [opposite]).any()
