from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import cos, pi, sin
from typing import Any

import numpy as np
import pytest
import torch

from tests.laws.layers import vectors
from tests.laws.references import Array, Given, models_of, shares
from tests.laws.samples import assert_same, merged_vector, network

CASES: list[dict[str, Any]] = [{"coefficients": {"task0": 0.5, "task1": 2.0}}, {"coefficients": "inverse_norm"}]


def on_the_arc(first: Array, second: Array, ratio: float, linear: float) -> Array:
    """Shoemake's formula, by the angle between two vectors; a line where their cosine is beyond `linear`."""
    lengths = np.linalg.norm(first) * np.linalg.norm(second)
    cosine = float(np.clip((first * second).sum() / lengths, -1, 1)) if lengths else 0.0
    if abs(cosine) > linear:
        return (1 - ratio) * first + ratio * second
    angle = np.arccos(cosine)
    return (np.sin((1 - ratio) * angle) * first + np.sin(ratio * angle) * second) / np.sin(angle)


def ratio_of(layer: Given, coefficients: Mapping[str, float] | str | None) -> float:
    """Return how far from the first model to the second."""
    weights = shares(layer, coefficients)
    return float(weights[1] / weights.sum())


def reference(layers: Sequence[Given], *, coefficients: Mapping[str, float] | str | None = None) -> list[Array]:
    """Interpolate the models' weights; subtract the base."""
    merged = []
    for layer in layers:
        models = models_of(layer)
        if len(models) == 1:
            merged.append(layer.deltas[0])
        else:
            merged.append(on_the_arc(*models, ratio_of(layer, coefficients), 0.9995) - layer.base)
    return merged


def test_slerp_by_hand() -> None:
    # Models [3, 0] and [0, 3] on a base of [1, 1]: two thirds of a right angle are 60 degrees.
    layer = replace(vectors([torch.tensor([2.0, -1.0]), torch.tensor([-1.0, 2.0])]), base=torch.ones(2))
    found = 1 + merged_vector("slerp", [layer], coefficients={"task0": 1.0, "task1": 2.0})
    assert found.tolist() == pytest.approx([3 * cos(pi / 3), 3 * sin(pi / 3)])


def test_models_of_one_length_give_a_merge_of_that_length_at_its_share_of_the_angle() -> None:
    generator = torch.Generator().manual_seed(0)
    first, second = torch.nn.functional.normalize(torch.randn(2, 40, generator=generator).double())
    base = torch.randn(40, generator=generator).double()
    layer = replace(vectors([first - base, second - base]), base=base)
    found = base + merged_vector("slerp", [layer], coefficients={"task0": 3.0, "task1": 1.0})
    assert float(found.norm()) == pytest.approx(1)
    whole, part = torch.acos(first @ second), torch.acos(first @ found)
    assert float(part / whole) == pytest.approx(0.25)


def test_models_at_a_small_angle_are_averaged() -> None:
    near = [replace(layer, base=10 + layer.deltas[0].abs()) for layer in network(2)]
    assert_same(merged_vector("slerp", near), merged_vector("average", near), 1e-6)


def test_the_bases_place_decides_nothing() -> None:
    layers = network(2, dtype=torch.float64)
    moved = [replace(x, base=x.base + 0.3, deltas=x.deltas - 0.3) for x in layers if x.base is not None]
    assert_same(merged_vector("slerp", moved) + 0.3, merged_vector("slerp", layers), 1e-9)
