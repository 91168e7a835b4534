from collections.abc import Sequence
from dataclasses import replace
from math import sqrt

import numpy as np
import pytest
import torch
from torch import Tensor

from merganser.inputs.layers import LayerDeltas
from tests.laws.layers import uniforms
from tests.laws.references import Array, Given, PerTask, each_task, elected_mean, flat, unflat
from tests.laws.samples import SHAPES, joined, merged_vector, network


def dropped(layer: Given, rate: PerTask) -> Given:
    """Drop and rescale each task's entries, with the random numbers drawn for it."""
    draws = [
        uniforms(layer.deltas.shape[1:], seed=layer.seed, task=task, parameter=layer.name).numpy()
        for task in layer.tasks
    ]
    rates = np.reshape(each_task(rate, [layer]), (-1, *[1] * (layer.deltas.ndim - 1)))
    return layer._replace(deltas=np.where(np.stack(draws) >= rates, layer.deltas, 0) / (1 - rates))


def reference(layers: Sequence[Given], combine: str, drop_rate: PerTask, scaling: float | None) -> list[Array]:
    """Drop, rescale, then add, or elect and average who agrees."""
    left = [dropped(layer, drop_rate) for layer in layers]
    if combine == "ties":
        return unflat((1.0 if scaling is None else scaling) * elected_mean(flat(left)), layers)
    return [(0.4 if scaling is None else scaling) * layer.deltas.sum(0) for layer in left]


@pytest.mark.parametrize("tasks", [1, 3])
def test_dare_that_drops_nothing_is_the_inner_method(tasks: int) -> None:
    layers = network(tasks)
    summed = merged_vector("dare", layers, drop_rate=0.0)
    assert torch.equal(summed, merged_vector("task_arithmetic", layers))
    elected = merged_vector("dare", layers, drop_rate=0.0, combine="ties")
    assert torch.equal(elected, merged_vector("ties", layers, density=1.0))


def test_the_mean_over_seeds_is_the_undropped_sum() -> None:
    rate, seeds, layers = 0.8, 200, network(3)
    runs = [
        merged_vector("dare", [replace(layer, seed=seed) for layer in layers], drop_rate=rate, scaling=1.0)
        for seed in range(seeds)
    ]
    tau = joined(layers)
    bound = 6 * (tau.square().sum(0) * rate / ((1 - rate) * seeds)).sqrt()
    assert ((torch.stack(runs).mean(0) - tau.sum(0)).abs() <= bound).all()


def test_the_share_dropped_is_the_drop_rate() -> None:
    n, rate = 100_000, 0.8
    numbers = uniforms((n,), seed=0, task="a", parameter="w")
    assert abs(float((numbers < rate).float().mean()) - rate) < 6 * sqrt(rate * (1 - rate) / n)


def test_masks_depend_on_seed_task_and_parameter_alone() -> None:
    def draw(seed: int = 0, task: str = "a", parameter: str = "w") -> Tensor:
        return uniforms((64,), seed=seed, task=task, parameter=parameter)

    first = draw()
    torch.rand(5)  # the global generator has no part in it
    assert torch.equal(draw(), first)
    others = [draw(seed=1), draw(task="b"), draw(parameter="v"), draw(task="aw", parameter="")]
    assert not any(torch.equal(other, first) for other in others)
    assert first[:3].tolist() == pytest.approx([0.6723806, 0.5720182, 0.5265553])  # on any machine


def test_both_inner_methods_draw_the_same_masks() -> None:
    layers = network(1)
    summed = merged_vector("dare", layers, scaling=1.0)
    assert torch.equal(summed, merged_vector("dare", layers, combine="ties"))


@pytest.mark.parametrize(("combine", "default"), [("task_arithmetic", 0.4), ("ties", 1.0)])
def test_the_default_scaling_is_the_inner_methods(combine: str, default: float) -> None:
    layers = network(2)
    unsaid = merged_vector("dare", layers, combine=combine)
    assert torch.equal(unsaid, merged_vector("dare", layers, combine=combine, scaling=default))
    assert len(unsaid) == sum(torch.Size(shape).numel() for shape in SHAPES.values())


def test_dare_by_hand() -> None:
    numbers = uniforms((3,), seed=0, task="task0", parameter="bias")
    layer = LayerDeltas("bias", "vector", ("task0",), torch.tensor([[1.0, -2.0, 4.0]]))
    rate = float(numbers.sort().values[0:2].mean())  # drops just the smallest number's entry
    expected = [0.0 if number < rate else x / (1 - rate) for x, number in zip([1.0, -2.0, 4.0], numbers, strict=True)]
    assert expected.count(0.0) == 1
    assert merged_vector("dare", [layer], drop_rate=rate, scaling=1.0).tolist() == pytest.approx(expected)
