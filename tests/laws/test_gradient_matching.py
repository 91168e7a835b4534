from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from merganser.inputs.layers import LayerDeltas, Statistics
from tests.laws import test_fisher
from tests.laws.references import Array, Given, measured
from tests.laws.samples import assert_same, in_pieces, joined, merged_vector, network

CASES: list[dict[str, Any]] = test_fisher.CASES


def reference(layers: Sequence[Given], *, coefficients: Mapping[str, float] | str | None = None) -> list[Array]:
    """Add alpha_t (H_0 + sum of alpha_j H_j)^-1 (H_0 + H_t) times the deltas, all diagonal."""
    merged = []
    for layer in layers:
        count, own = len(layer.tasks), measured(layer.statistics["fisher"])
        start = measured(layer.statistics["base_fisher"]).mean(0)
        alphas = test_fisher.shares(layer, coefficients) / count
        if coefficients == "inverse_norm":
            alphas *= 0.5 / alphas.sum()  # NAN's coefficients add up to T / 2
        inverse = 1 / (start + np.tensordot(alphas, own, 1))
        merged.append(sum(a * inverse * (start + h) * d for a, h, d in zip(alphas, own, layer.deltas, strict=True)))
    return merged


def measured_as(
    layers: Sequence[LayerDeltas], own: Sequence[Tensor] | float, base: Sequence[Tensor] | float
) -> list[LayerDeltas]:
    """Give layers other information, one number for all entries where a number is given."""
    changed = []
    for i, layer in enumerate(layers):
        fisher, of_base = (
            torch.full_like(layer.deltas, each) if isinstance(each, float) else each[i] for each in (own, base)
        )
        changed.append(replace(layer, statistics=Statistics({"fisher": fisher, "base_fisher": of_base})))
    return changed


def parts(layers: Sequence[LayerDeltas], name: str) -> list[Tensor]:
    return [layer.statistics[name] for layer in layers]


@pytest.mark.parametrize("tasks", [1, 2, 8])
def test_equal_information_everywhere_gives_the_average(tasks: int) -> None:
    layers = network(tasks, dtype=torch.float64)
    own = [each[:1].expand_as(each) for each in parts(layers, "fisher")]
    found = merged_vector("gradient_matching", measured_as(layers, own, own))
    assert_same(found, merged_vector("average", layers), 1e-10)


def test_without_the_bases_information_it_is_fisher_merging_with_alpha_times_the_information() -> None:
    layers, weights = network(3, dtype=torch.float64), {"task0": 0.3, "task2": 2.0}
    own = parts(layers, "fisher")
    found = merged_vector("gradient_matching", measured_as(layers, own, 0.0), coefficients=weights)
    stacked = torch.cat([each.reshape(3, -1) for each in own], dim=1) * torch.tensor(
        [[0.3], [1.0], [2.0]], dtype=torch.float64
    )
    assert_same(found, (stacked * joined(layers)).sum(0) / stacked.sum(0), 1e-10)


@pytest.mark.parametrize(("own", "base"), [(0.0, 0.1), (1.0, 1e14), (0.0, 0.0)])
def test_what_only_the_base_is_sure_of_is_task_arithmetic(own: float, base: float) -> None:
    layers, weights = network(2, dtype=torch.float64), {"task0": 0.6, "task1": 2.0}
    found = merged_vector("gradient_matching", measured_as(layers, own, base), coefficients=weights)
    arithmetic = merged_vector("task_arithmetic", layers, scaling={"task0": 0.3, "task1": 1.0})
    assert_same(found, arithmetic, 1e-10)


def test_one_task_gives_its_own_model() -> None:
    layers = network(1, dtype=torch.float64)
    assert_same(merged_vector("gradient_matching", layers), joined(layers)[0], 1e-12)


def test_all_information_times_a_factor_changes_nothing() -> None:
    layers = network(3, dtype=torch.float64)
    larger = measured_as(layers, *([1e-7 * each for each in parts(layers, n)] for n in ("fisher", "base_fisher")))
    found = merged_vector("gradient_matching", larger)
    assert_same(found, merged_vector("gradient_matching", layers), 1e-10)


def test_gradient_matching_by_hand() -> None:
    layers = in_pieces(torch.tensor([[4.0, 2.0], [2.0, 0.0]], dtype=torch.float64))
    own = [torch.tensor([[[3.0]], [[1.0]]]).double(), torch.tensor([[1.0], [1.0]]).double()]
    base = [torch.tensor([[[2.0]], [[0.0]]]).double(), torch.tensor([[0.0], [0.0]]).double()]  # the mean is 1 and 0
    # (1/2 (1 + 3) 4 + 1/2 (1 + 1) 2) / (1 + 1/2 (3 + 1)) = 10/3
    found = merged_vector("gradient_matching", measured_as(layers, own, base))
    torch.testing.assert_close(found, torch.tensor([10 / 3, 1.0], dtype=torch.float64), rtol=1e-12, atol=0)
