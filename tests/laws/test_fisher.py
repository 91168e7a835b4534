from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from merganser.errors import InputError
from merganser.inputs.layers import LayerDeltas, Statistics
from tests.laws.references import Array, Given, measured, shares
from tests.laws.samples import assert_same, in_pieces, joined, merged_vector, network

CASES: list[dict[str, Any]] = [
    {"coefficients": {"task0": 0.5, "task1": 2.0}},
    {"coefficients": {"task1": 0.0}},
    {"coefficients": "inverse_norm"},
]


def reference(layers: Sequence[Given], *, coefficients: Mapping[str, float] | str | None = None) -> list[Array]:
    """Average entry by entry, weighted by lambda times the information over its norm, at least 1e-6."""
    found = [measured(layer.statistics["fisher"]) for layer in layers]
    norms = np.sqrt(sum((each.reshape(len(each), -1) ** 2).sum(1) for each in found))
    merged = []
    for layer, information in zip(layers, found, strict=True):
        ones = (-1, *[1] * (information.ndim - 1))
        weights = shares(layer, coefficients).reshape(ones) * np.maximum(information / norms.reshape(ones), 1e-6)
        merged.append((weights * layer.deltas).sum(0) / weights.sum(0))
    return merged


def with_fisher(layers: Sequence[LayerDeltas], fishers: Sequence[Tensor]) -> list[LayerDeltas]:
    return [replace(x, statistics=Statistics({"fisher": f})) for x, f in zip(layers, fishers, strict=True)]


def information(layers: Sequence[LayerDeltas]) -> list[Tensor]:
    return [layer.statistics["fisher"] for layer in layers]


@pytest.mark.parametrize("tasks", [1, 2, 8])
def test_equal_information_gives_the_average(tasks: int) -> None:
    layers = network(tasks, dtype=torch.float64)
    equal = with_fisher(layers, [f[:1].expand_as(f) for f in information(layers)])
    assert_same(merged_vector("fisher", equal), merged_vector("average", layers), 1e-10)


def test_a_tasks_information_times_any_factor_changes_nothing() -> None:
    layers = network(3, dtype=torch.float64)
    factors = torch.tensor([1e-8, 1.0, 1e8], dtype=torch.float64)
    larger = with_fisher(layers, [f * factors.view(-1, *[1] * (f.ndim - 1)) for f in information(layers)])
    assert_same(merged_vector("fisher", larger), merged_vector("fisher", layers), 1e-10)


def test_every_entry_lies_between_the_tasks_smallest_and_largest() -> None:
    layers = network(4, dtype=torch.float64)
    entries, merged = joined(layers), merged_vector("fisher", layers, coefficients={"task1": 7.0})
    assert (merged >= entries.amin(0) - 1e-15).all()
    assert (merged <= entries.amax(0) + 1e-15).all()
    assert (merged - entries.mean(0)).abs().max() > 1e-4


def test_an_entry_that_no_task_is_sure_of_is_averaged_and_others_go_to_who_is() -> None:
    layers = in_pieces(torch.tensor([[4.0, 2.0, -3.0, 1.0], [2.0, 0.0, 1.0, 5.0]], dtype=torch.float64))
    sure = [torch.tensor([[[0.0, 3.0]], [[0.0, 0.0]]]), torch.tensor([[0.0, 4.0], [0.0, 5.0]])]
    # norms 5 and 5: the second entry weighs 0.6 against 1e-6, the last one 0.8 against 1
    found = merged_vector("fisher", with_fisher(layers, [each.double() for each in sure]))
    expected = [3.0, 2.0 * 0.6 / (0.6 + 1e-6), -1.0, (0.8 * 1 + 1.0 * 5) / 1.8]
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64), rtol=1e-12, atol=0)


def test_without_any_information_it_is_the_average() -> None:
    layers = network(3)
    nothing = with_fisher(layers, [torch.zeros_like(f) for f in information(layers)])
    assert_same(merged_vector("fisher", nothing), merged_vector("average", layers))


def test_coefficients_are_weights_of_the_mean() -> None:
    layers = network(3, dtype=torch.float64)
    doubled = merged_vector("fisher", layers, coefficients=dict.fromkeys(layers[0].tasks, 2.0))
    assert_same(doubled, merged_vector("fisher", layers), 1e-12)
    alone = merged_vector("fisher", layers, coefficients={"task0": 0.0, "task2": 0.0})
    assert_same(alone, joined(layers)[1], 1e-12)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"task9": 1.0}, "coefficients: no such task: task9"),
        (
            {"task0": -1.0},
            r"^fisher\.coefficients\.task0: expected 0 or more, got -1\.0: fisher divides by sums of wei",
        ),
        ({"task0": 0.0, "task1": 0.0}, "coefficients: all are 0; give at least one task more"),
    ],
)
def test_weights_that_make_no_mean_are_refused(given: dict[str, float], said: str) -> None:
    with pytest.raises(InputError, match=said):
        merged_vector("fisher", network(2), coefficients=given)
