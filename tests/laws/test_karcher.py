from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import sqrt
from typing import Any

import numpy as np
import pytest
import torch

from tests.laws.layers import vectors
from tests.laws.references import Array, Given, models_of, shares
from tests.laws.samples import assert_same, merged_vector, network

CASES: list[dict[str, Any]] = [{"coefficients": {"task0": 0.5, "task1": 2.0}}, {"coefficients": "inverse_norm"}]


def reference(layers: Sequence[Given], *, coefficients: Mapping[str, float] | str | None = None) -> list[Array]:
    """Iterate on the sphere itself: the mean of the logarithms at a point, and the exponential back."""
    merged = []
    for layer in layers:
        models = models_of(layer).reshape(len(layer.tasks), -1)
        weights = shares(layer, coefficients)
        merged.append(karcher_mean(models, weights / weights.sum()).reshape(layer.deltas.shape[1:]) - layer.base)
    return merged


def karcher_mean(models: Array, weights: Array) -> Array:
    """Find the mean direction of vectors (T, n), times their mean length."""
    lengths = np.linalg.norm(models, axis=1)
    some = lengths > 0
    units, own = models[some] / lengths[some, None], weights[some] / weights[some].sum() if some.any() else weights
    point = own @ units if some.any() else np.zeros(models.shape[1])
    if np.linalg.norm(point) < 1e-6:
        return weights @ models
    for _ in range(200):
        point = point / np.linalg.norm(point)
        tangent = np.zeros_like(point)
        for weight, unit in zip(own, units, strict=True):
            beside = unit - (unit @ point) * point
            if np.linalg.norm(beside) > 1e-6:
                angle = np.arctan2(np.linalg.norm(beside), unit @ point)
                tangent += weight * angle * beside / np.linalg.norm(beside)
        length = np.linalg.norm(tangent)
        if length < 1e-13:
            break
        point = np.cos(length) * point + np.sin(length) * tangent / length
    return weights @ lengths * point


def test_karcher_by_hand() -> None:
    # Models along the three axes, of lengths 1, 2 and 3, on a base of ones: the middle, of length 2.
    models = [torch.tensor(x) for x in ([1.0, 0.0, 0.0], [0.0, 2.0, 0.0], [0.0, 0.0, 3.0])]
    layer = replace(vectors([model - 1 for model in models]), base=torch.ones(3))
    assert (1 + merged_vector("karcher", [layer])).tolist() == pytest.approx([2 / sqrt(3)] * 3)


def test_of_two_models_of_one_length_it_is_slerp() -> None:
    layers = []
    for layer in network(2, dtype=torch.float64)[:6]:  # a scalar has two directions: they agree or cancel
        models = 0.01 * layer.deltas / layer.deltas.flatten(1).norm(dim=1).view(2, *[1] * (layer.deltas.ndim - 1))
        base = models.mean(0) + 0.01
        layers.append(replace(layer, base=base, deltas=models - base))
    given = {"task0": 1.0, "task1": 3.0}
    assert_same(
        merged_vector("karcher", layers, coefficients=given), merged_vector("slerp", layers, coefficients=given), 1e-7
    )


def test_directions_that_cancel_are_averaged() -> None:
    layer = replace(vectors([torch.tensor([1.0, 0.0]), torch.tensor([-3.0, 0.0])]), base=torch.zeros(2))
    assert merged_vector("karcher", [layer]).tolist() == [-1.0, 0.0]


def test_a_model_of_zeros_shortens_the_mean_and_does_not_turn_it() -> None:
    layer = replace(vectors([torch.tensor([3.0, 4.0]), torch.zeros(2)]), base=torch.zeros(2))
    assert merged_vector("karcher", [layer]).tolist() == [1.5, 2.0]
