from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from tests.laws.layers import matrices
from tests.laws.references import Array, Given
from tests.laws.samples import merged_vector, network


def reference(layers: Sequence[Given]) -> list[Array]:
    """Add the deltas, each times T/2 times its share of the inverse norms."""
    merged = []
    for layer in layers:
        inverse = [1 / norm for norm in layer.norms]
        shares = [len(inverse) / 2 * each / sum(inverse) for each in inverse]
        merged.append(sum(share * delta for share, delta in zip(shares, layer.deltas, strict=True)))
    return merged


@pytest.mark.parametrize("tasks", [1, 2, 8])
def test_models_of_equal_norm_are_added_and_halved(tasks: int) -> None:
    layers = [replace(layer, norms=(3.0,) * tasks) for layer in network(tasks)]
    torch.testing.assert_close(
        merged_vector("nan", layers), merged_vector("task_arithmetic", layers, scaling=0.5), rtol=1e-6, atol=0
    )


@pytest.mark.parametrize("norms", [(0.0, 2.0), (0.0, 0.0)])
def test_with_a_norm_of_zero_the_tasks_weigh_the_same(norms: tuple[float, float]) -> None:
    layer = replace(matrices([torch.tensor([[4.0, 2.0]]), torch.tensor([[2.0, 0.0]])]), norms=norms)
    assert merged_vector("nan", [layer]).tolist() == [3.0, 1.0]


def test_nan_by_hand() -> None:
    deltas = torch.tensor([[[4.0, 8.0]], [[4.0, 0.0]]])
    layer = replace(matrices(list(deltas)), norms=(1.0, 3.0))  # shares 3/4 and 1/4, and T/2 = 1
    assert merged_vector("nan", [layer]).tolist() == [4.0, 6.0]


@pytest.mark.parametrize("tasks", [1, 3])
def test_its_coefficients_before_task_arithmetic_are_nan_merging(tasks: int) -> None:
    layers = network(tasks)
    before = merged_vector("task_arithmetic", layers, coefficients="inverse_norm", scaling=1.0)
    torch.testing.assert_close(before, merged_vector("nan", layers), rtol=1e-5, atol=1e-9)
