from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch

from merganser.errors import InputError
from tests.laws.layers import matrices, merged, uniforms, vectors
from tests.laws.references import Array, Given, counted, largest, shares
from tests.laws.samples import assert_same, merged_vector, network

CASES: list[dict[str, Any]] = [
    {"keep": keep, "density": 0.4, "gamma": 0.8, "eps": 0.2, "coefficients": {"task0": 0.5, "task1": -0.3}, **more}
    for keep, more in product(
        ("largest", "middle", "random", "random_by_size"), ({}, {"rescale": True, "averaging": "sum"})
    )
] + [{"coefficients": "inverse_norm", "elect": False}]


def mask_of(layer: Given, task: int, keep: str, density: float, gamma: float, eps: float) -> Array:
    """Mark what of a task's delta is kept."""
    delta = layer.deltas[task]
    sizes = np.abs(delta).reshape(-1)
    n, wanted = sizes.size, counted(density, sizes.size)
    if density == 1:
        return np.ones(delta.shape, bool)
    if keep == "largest":
        return largest(sizes, max(1, wanted)).reshape(delta.shape)
    if keep == "middle":
        dropped = n - max(0, n - wanted - counted(1 - gamma, n)) - wanted
        return (largest(sizes, dropped + wanted) & ~largest(sizes, dropped)).reshape(delta.shape)
    chances = np.full(delta.shape, density)
    if keep == "random_by_size":
        rows = np.abs(np.atleast_1d(delta))
        falling = np.argsort(np.argsort(-rows, axis=-1, kind="stable"), axis=-1)
        span = rows.shape[-1] - 1
        chances = density + eps * (0.5 - falling / span if span else 0 * falling)
        chances = chances.reshape(delta.shape)
    numbers = uniforms(delta.shape, seed=layer.seed, task=layer.tasks[task], parameter=layer.name).numpy()
    return numbers >= np.float32(1) - chances.astype(np.float32)


def reference(
    layers: Sequence[Given],
    *,
    keep: str,
    density: float | Mapping[str, float],
    gamma: float,
    eps: float,
    rescale: bool,
    elect: bool,
    averaging: str,
    scaling: float,
    coefficients: Mapping[str, float] | str | None = None,
) -> list[Array]:
    """Mask, rescale, weigh, elect and divide, entry by entry."""
    merged = []
    for layer in layers:
        weights = shares(layer, coefficients)
        if coefficients == "inverse_norm":
            weights = len(weights) / 2 * weights / weights.sum()
        sparse = []
        for task, (name, delta) in enumerate(zip(layer.tasks, layer.deltas, strict=True)):
            share = density[name] if isinstance(density, Mapping) else density
            left = delta * mask_of(layer, task, keep, share, gamma, eps)
            some = np.abs(left).sum()
            sparse.append(left * (np.abs(delta).sum() / some if rescale and some else 1.0))
        weighted = np.stack([weight * left for weight, left in zip(weights, sparse, strict=True)])
        sign = np.where(weighted.sum(0) >= 0, 1, -1)
        agrees = weighted * sign > 0 if elect else np.ones(weighted.shape)
        total = np.tensordot(weights, agrees.astype(float), 1)
        summed = (weighted * agrees).sum(0)
        merged.append(scaling * (summed / np.where(total == 0, 1, total) if averaging == "disjoint" else summed))
    return merged


@pytest.mark.parametrize("tasks", [1, 3])
def test_without_election_and_mean_at_density_one_it_is_task_arithmetic(tasks: int) -> None:
    layers = network(tasks)
    given = {"coefficients": {"task0": -0.5}, "scaling": 0.7}
    found = merged_vector("sparse_arithmetic", layers, elect=False, averaging="sum", **given)
    assert_same(found, merged_vector("task_arithmetic", layers, **given), 1e-6)


def test_sparse_arithmetic_by_hand() -> None:
    layer = matrices([torch.tensor([[4.0, -1.0, 2.0, 3.0]]), torch.tensor([[-5.0, 6.0, 1.0, 2.0]])])
    # Kept: 4 and 3; -5 and 6. The signs are -, +, draw (+), +; by weights 1 and 3 the tasks that agree are averaged.
    found = merged_vector("sparse_arithmetic", [layer], density=0.5, coefficients={"task1": 3.0})
    assert found.tolist() == [-5, 6, 0, 3]
    summed = merged_vector("sparse_arithmetic", [layer], density=0.5, coefficients={"task1": 3.0}, averaging="sum")
    assert summed.tolist() == [-15, 18, 0, 3]
    whole = merged_vector("sparse_arithmetic", [layer], coefficients={"task1": 3.0})
    assert whole.tolist() == pytest.approx([-5, 6, (2 + 3) / 4, (3 + 6) / 4])


@pytest.mark.parametrize("elect", [True, False])
def test_weights_that_cancel_but_for_rounding_divide_by_nothing(elect: bool) -> None:
    weights = {"task0": 0.1, "task1": 0.2, "task2": -0.3}  # they add up to 5.6e-17
    layer = vectors([torch.tensor([1.0]), torch.tensor([2.0]), torch.tensor([-4.0])])
    (found,) = merged("sparse_arithmetic", layer, coefficients=weights, elect=elect)
    assert isinstance(found, torch.Tensor)
    assert found.tolist() == pytest.approx([1.7])


def test_the_middle_lies_below_the_outliers_and_its_share_is_kept() -> None:
    sizes = torch.arange(1.0, 11.0)
    kept = merged_vector("sparse_arithmetic", [vectors([sizes])], keep="middle", density=0.5, gamma=0.8)
    assert kept.tolist() == [0, 0, 0, 4, 5, 6, 7, 8, 0, 0]
    # With fewer outliers to spare than gamma asks for, the density holds.
    kept = merged_vector("sparse_arithmetic", [vectors([sizes])], keep="middle", density=0.9, gamma=0.5)
    assert kept.tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9, 0]


@pytest.mark.parametrize("keep", ["random", "random_by_size"])
def test_random_masks_keep_their_share_and_rescaling_keeps_the_l1_norm(keep: str) -> None:
    deltas = torch.randn(1, 100, 200, generator=torch.Generator().manual_seed(0))
    found = merged_vector("sparse_arithmetic", [matrices(list(deltas))], keep=keep, density=0.3, eps=0.4, rescale=True)
    assert float((found != 0).double().mean()) == pytest.approx(0.3, abs=0.02)  # six standard errors
    assert float(found.abs().sum()) == pytest.approx(float(deltas.abs().sum()))
    order = deltas[0].abs().argsort(-1)
    share = (found.view(100, 200).gather(1, order) != 0).double().mean(0)
    largest, smallest = float(share[-20:].mean()), float(share[:20].mean())
    assert (largest > smallest + 0.2) is (keep == "random_by_size")


def test_chances_beyond_zero_and_one_are_refused() -> None:
    with pytest.raises(InputError, match=r"eps: 0\.3 around a density of 0\.1 leaves \(0, 1\); choose eps below 0\.2"):
        merged_vector("sparse_arithmetic", network(1), keep="random_by_size", density=0.1, eps=0.3)
