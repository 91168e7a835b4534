from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import sqrt

import numpy as np
import pytest
import torch

from tests.laws.layers import vectors
from tests.laws.references import Array, Given, models_of, shares
from tests.laws.samples import assert_same, merged_vector, network


def reference(
    layers: Sequence[Given], *, of: str, granularity: str, coefficients: Mapping[str, float] | str | None
) -> list[Array]:
    """Project the directions onto the space that touches the sphere at their mean, average there, and go back."""
    merged = []
    for layer in layers:
        stack = models_of(layer) if of == "models" else layer.deltas
        start = layer.base if of == "models" else 0
        if stack.ndim < 3 or granularity == "parameter":
            groups = stack.reshape(len(stack), 1, -1)
        else:
            groups = stack if granularity == "row" else stack.transpose(0, 2, 1)
        weights = shares(layer, coefficients)
        found = np.stack([interpolated(groups[:, g], weights / weights.sum()) for g in range(groups.shape[1])])
        if granularity == "column" and stack.ndim > 2:
            found = found.T
        merged.append(found.reshape(stack.shape[1:]) - start)
    return merged


def interpolated(vectors: Array, weights: Array) -> Array:
    """Interpolate on the sphere, as mergekit does step by step."""
    lengths = np.linalg.norm(vectors, axis=1)
    units = np.divide(vectors, lengths[:, None], where=lengths[:, None] > 0, out=np.zeros_like(vectors))
    mean = weights @ units
    if np.linalg.norm(mean) <= 1e-8:
        return weights @ vectors
    mean = mean / np.linalg.norm(mean)
    tangents = units - (units @ mean)[:, None] * mean
    step = weights @ tangents
    length = np.linalg.norm(step) + 1e-8
    return weights @ lengths * (mean * np.cos(length) + step * np.sin(length) / length)


def test_multislerp_by_hand() -> None:
    # Lengths 1, 2 and 3 along the three axes: the middle, of length 2.
    layer = vectors([torch.tensor(x) for x in ([1.0, 0.0, 0.0], [0.0, 2.0, 0.0], [0.0, 0.0, 3.0])])
    assert merged_vector("multislerp", [layer]).tolist() == pytest.approx([2 / sqrt(3)] * 3)
    # Weighed 1 to 3 to 0, the direction is (1, 3, 0), and the length (1 + 6) / 4.
    found = merged_vector("multislerp", [layer], coefficients={"task1": 3.0, "task2": 0.0})
    assert found.tolist() == pytest.approx([1.75 / sqrt(10), 1.75 * 3 / sqrt(10), 0.0])


@pytest.mark.parametrize("tasks", [1, 3, 8])
def test_the_merge_is_as_long_as_the_vectors_are_on_average(tasks: int) -> None:
    for layer in network(tasks, dtype=torch.float64):
        found = float(merged_vector("multislerp", [layer]).norm())
        if found > 1e-3 * float(layer.deltas.norm()):  # a scalar's directions may cancel
            lengths = layer.deltas.reshape(tasks, -1).norm(dim=1)
            assert found == pytest.approx(float(lengths.mean()), rel=1e-6)


@pytest.mark.parametrize("granularity", ["parameter", "row", "column"])
def test_of_two_vectors_of_one_length_it_is_nuslerps_middle(granularity: str) -> None:
    layers = []
    for layer in network(2, dtype=torch.float64)[:2]:
        dims = {"parameter": (1, 2), "row": (2,), "column": (1,)}[granularity]
        layers.append(replace(layer, deltas=layer.deltas / layer.deltas.norm(dim=dims, keepdim=True)))
    found, other = (merged_vector(name, layers, granularity=granularity) for name in ("multislerp", "nuslerp"))
    assert_same(found, other, 1e-9)


def test_directions_that_cancel_are_averaged() -> None:
    layer = vectors([torch.tensor([1.0, 0.0]), torch.tensor([-3.0, 0.0]), torch.zeros(2)])
    assert merged_vector("multislerp", [layer]).tolist() == pytest.approx([-2 / 3, 0.0])
