from collections.abc import Sequence
from dataclasses import replace
from math import exp

import numpy as np
import pytest
import torch

from merganser.inputs.layers import LayerDeltas
from tests.laws.references import Array, Given, counted, flat, unflat
from tests.laws.samples import assert_same, in_pieces, joined, layer_of, merged_vector, network

ROUNDING = 1e-12  # scores as close as this are one score


def reference(layers: Sequence[Given], ratio: float, scaling: float) -> list[Array]:
    """Score over the whole vectors at once, keep the highest, average by score; lambda stands in the sum alone."""
    tau = flat(layers)
    sizes = [layer.deltas[0].size for layer in layers]
    lambdas = [np.ones(len(tau)) if layer.weights is None else layer.weights for layer in layers]
    weighted = tau * np.repeat(np.stack(lambdas, axis=1), sizes, axis=1)
    squares = np.stack([softmax(len(tau) * normalised(row * row)) for row in tau])
    cross = np.stack([sum(softmax(normalised(row * other)) for other in tau) for row in tau])
    beta = squares * cross
    count = counted(ratio, beta.shape[1])
    if count:
        threshold = np.sort(beta, axis=1)[:, -count]
        beta = beta * (beta >= threshold[:, None] * (1 - ROUNDING))
    else:
        beta = 0 * beta
    mass = beta.sum(0)
    return unflat(scaling * (beta * weighted).sum(0) / np.where(mass > 0, mass, 1), layers)


def normalised(values: Array) -> Array:
    """Bring values to [0, 1], a constant to 0."""
    width = values.max() - values.min()
    return (values - values.min()) / width if width > 0 else np.zeros_like(values)


def softmax(values: Array) -> Array:
    """Share 1 out by the exponentials."""
    shares = np.exp(values - values.max())
    return shares / shares.sum()


@pytest.mark.parametrize("ratio", [0.1, 0.5, 1.0])
@pytest.mark.parametrize("tasks", [1, 2, 8])
def test_identical_models_give_that_model_where_it_is_kept(tasks: int, ratio: float) -> None:
    alone = network(1)
    crowd = [layer_of(layer.name, layer.deltas.repeat(tasks, *[1] * (layer.deltas.ndim - 1))) for layer in alone]
    merged, tau = merged_vector("pcb", crowd, ratio=ratio), joined(alone)[0]
    kept = tau.abs() >= tau.abs().sort(descending=True).values[int(ratio * len(tau) + 1e-9) - 1]
    assert_same(merged, tau * kept, 1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_permuting_the_tasks_changes_nothing(dtype: torch.dtype) -> None:
    layers = [replace(x, deltas=x.deltas.to(dtype).float()) for x in network(5)]
    order = [3, 0, 4, 2, 1]
    turned = [replace(x, deltas=x.deltas[order], tasks=tuple(x.tasks[t] for t in order)) for x in layers]
    for ratio in (0.1, 0.37, 1.0):
        assert_same(merged_vector("pcb", turned, ratio=ratio), merged_vector("pcb", layers, ratio=ratio), 1e-6)


def test_pcb_by_hand() -> None:
    layers = in_pieces(torch.tensor([[2.0, 1.0, 0.0, 0.0]]))  # squares 4 1 0 0, normalised 1 1/4 0 0
    assert merged_vector("pcb", layers, ratio=0.5).tolist() == [2.0, 1.0, 0.0, 0.0]
    two = in_pieces(torch.tensor([[1.0, 0.0], [1.0, 2.0]]))
    # squares normalised to [1 0] and [0 1]; the product to [1 0]. Softmaxes, over their common denominators:
    e, within = exp(1), exp(2) + 1
    first = [exp(2) / within * 2 * e / (e + 1), 1 / within * 2 / (e + 1)]
    second = [1 / within * (e + 1) / (e + 1), exp(2) / within * (e + 1) / (e + 1)]
    expected = [1.0, 2 * second[1] / (first[1] + second[1])]
    assert merged_vector("pcb", two, ratio=1.0).tolist() == pytest.approx(expected)


def test_a_task_that_changed_nothing_competes_with_one_score_for_all_entries() -> None:
    layers = in_pieces(torch.tensor([[2.0, 1.0], [0.0, 0.0]]))
    e, within = exp(1), exp(2) + 1  # norm is 0 where all is equal, so each softmax there shares 1 out in halves
    first = [exp(2) / within * (e / (e + 1) + 0.5), 1 / within * (1 / (e + 1) + 0.5)]
    expected = [2 * first[0] / (first[0] + 0.5), first[1] / (first[1] + 0.5)]
    assert merged_vector("pcb", layers, ratio=1.0).tolist() == pytest.approx(expected)


@pytest.mark.parametrize("factor", [0.5, 3.0])
def test_one_coefficient_for_all_tasks_is_a_scaling(factor: float) -> None:
    layers = network(3)
    weighted = merged_vector("pcb", layers, coefficients=dict.fromkeys(layers[0].tasks, factor))
    assert_same(weighted, merged_vector("pcb", layers, scaling=factor), 1e-6)


def test_all_coefficients_of_zero_give_the_base_and_negative_ones_its_opposite() -> None:
    layers = network(3)
    tasks = layers[0].tasks
    plain = merged_vector("pcb", layers)
    assert not merged_vector("pcb", layers, coefficients=dict.fromkeys(tasks, 0.0)).any()
    assert_same(merged_vector("pcb", layers, coefficients=dict.fromkeys(tasks, -1.0)), -plain, 1e-6)


def test_a_merge_is_linear_in_the_coefficients() -> None:
    layers = network(3)
    first, *rest = layers[0].tasks
    alone = merged_vector("pcb", layers, coefficients=dict.fromkeys(rest, 0.0))
    others = merged_vector("pcb", layers, coefficients={first: 0.0})
    assert_same(alone + others, merged_vector("pcb", layers), 1e-6)
    assert_same(others - 0.5 * alone, merged_vector("pcb", layers, coefficients={first: -0.5}), 1e-6)


def test_entries_with_one_score_are_kept_or_dropped_together() -> None:
    tau = torch.tensor([[3.0, 2.0, -2.0, 2.0, 1.0, 0.0]])
    layers: list[LayerDeltas] = in_pieces(tau)
    assert merged_vector("pcb", layers, ratio=1 / 3).tolist() == [3.0, 2.0, -2.0, 2.0, 0.0, 0.0]
