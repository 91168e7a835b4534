from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import sqrt
from typing import Any

import numpy as np
import pytest
import torch

from tests.laws.layers import matrices
from tests.laws.references import Array, Given, models_of
from tests.laws.samples import assert_same, merged_vector, network
from tests.laws.test_slerp import on_the_arc, ratio_of

CASES: list[dict[str, Any]] = [
    {"coefficients": {"task0": 0.5, "task1": 2.0}},
    {"of": "models", "granularity": "row"},
    {"of": "models", "granularity": "column", "coefficients": {"task1": 3.0}},
]
LINEAR = 1 - 1e-12


def reference(
    layers: Sequence[Given], *, of: str, granularity: str, coefficients: Mapping[str, float] | str | None = None
) -> list[Array]:
    """Interpolate the task vectors, or the models, vector by vector of the last dimension or the first."""
    merged = []
    for layer in layers:
        if len(layer.tasks) == 1:
            merged.append(layer.deltas[0])
            continue
        ratio, pair = ratio_of(layer, coefficients), models_of(layer) if of == "models" else layer.deltas
        found = np.zeros(pair.shape[1:])
        if granularity == "parameter" or found.ndim < 2:
            found = on_the_arc(*pair, ratio, LINEAR)
        else:
            axis = -1 if granularity == "row" else 0
            views = [np.moveaxis(each, axis, -1) for each in (*pair, found)]
            for place in np.ndindex(views[0].shape[:-1]):
                views[2][place] = on_the_arc(views[0][place], views[1][place], ratio, LINEAR)
        merged.append(found - layer.base if of == "models" else found)
    return merged


def test_nuslerp_by_hand() -> None:
    first, second = torch.tensor([[2.0, 0.0], [0.0, 4.0]]), torch.tensor([[0.0, 2.0], [0.0, 2.0]])
    half = 1 / sqrt(2)  # what each of two vectors at a right angle gives to the middle
    found = merged_vector("nuslerp", [matrices([first, second])], granularity="row")
    assert found.tolist() == pytest.approx([2 * half, 2 * half, 0, 3])
    found = merged_vector("nuslerp", [matrices([first, second])], granularity="column")
    cosine = 8 / (4 * sqrt(8))  # of the second columns; the first are at a right angle, one of them being zero
    each = 1 / sqrt(2 * (1 + cosine))
    assert found.tolist() == pytest.approx([2 * half, 2 * each, 0, 6 * each])


def test_task_vectors_of_one_length_keep_it() -> None:
    (layer, *_) = network(2, dtype=torch.float64)
    unit = replace(layer, deltas=layer.deltas / layer.deltas.flatten(1).norm(dim=1).view(2, 1, 1))
    assert float(merged_vector("nuslerp", [unit], coefficients={"task1": 5.0}).norm()) == pytest.approx(1)
    rows = replace(layer, deltas=torch.nn.functional.normalize(layer.deltas, dim=-1))
    found = merged_vector("nuslerp", [rows], granularity="row").view(layer.shape)
    assert found.norm(dim=-1).tolist() == pytest.approx([1] * len(found))


def test_of_models_at_an_angle_it_is_slerp() -> None:
    layers = [replace(layer, base=0.1 * layer.deltas[0]) for layer in network(2)]
    assert_same(merged_vector("nuslerp", layers, of="models"), merged_vector("slerp", layers))
