from collections.abc import Sequence
from math import ceil, floor

import numpy as np
import pytest
import torch

from merganser.errors import InputError
from merganser.linalg.counts import ceiling_of
from tests.laws.layers import vectors
from tests.laws.references import Array, Given, PerTask, each_task
from tests.laws.samples import merged_vector, network


def reference(layers: Sequence[Given], beta: PerTask, gamma: PerTask, scaling: float) -> list[Array]:
    """Sort each layer's magnitudes, and add the middle and what equals one of it."""
    merged = []
    for layer in layers:
        summed = np.zeros(layer.deltas[0].size)
        for delta, low, high in zip(layer.deltas, each_task(beta, layers), each_task(gamma, layers), strict=True):
            row = delta.reshape(-1)
            middle = np.sort(np.abs(row))[floor(low * row.size + 1e-9) : ceil(high * row.size - 1e-9)]
            summed += np.where((np.abs(row) >= middle[0]) & (np.abs(row) <= middle[-1]), row, 0)
        merged.append(scaling * summed.reshape(layer.deltas.shape[1:]))
    return merged


@pytest.mark.parametrize("tasks", [1, 2, 8])
def test_with_nothing_dropped_breadcrumbs_is_task_arithmetic(tasks: int) -> None:
    layers = network(tasks)
    crumbs = merged_vector("breadcrumbs", layers, beta=0.0, gamma=1.0, scaling=0.7)
    assert torch.equal(crumbs, merged_vector("task_arithmetic", layers, scaling=0.7))


def test_breadcrumbs_by_hand() -> None:
    delta = torch.tensor([0.1, -0.9, 0.5, 0.2, -0.4, 0.3, 0.8, -0.7, 0.6, 1.0])
    merged = merged_vector("breadcrumbs", [vectors([delta])], beta=0.5, gamma=0.8, scaling=1.0)
    # ranks from the smallest: .1 .2 .3 .4 .5 | .6 .7 .8 | .9 1
    assert merged.tolist() == pytest.approx([0, 0, 0, 0, 0, 0, 0.8, -0.7, 0.6, 0])


def test_each_layer_and_each_task_has_tails_of_its_own() -> None:
    large, small = torch.tensor([5.0, 6.0]), torch.tensor([2.0, -1.0])
    layers = [vectors([large, small], "a"), vectors([small, large], "b")]
    merged = merged_vector("breadcrumbs", layers, beta=0.5, gamma=1.0, scaling=1.0)
    assert merged.tolist() == [2.0, 6.0, 2.0, 6.0]


def band(delta: torch.Tensor, beta: float, gamma: float) -> torch.Tensor:
    return merged_vector("breadcrumbs", [vectors([delta])], beta=beta, gamma=gamma, scaling=1.0)


def test_what_equals_the_smallest_or_the_largest_that_is_kept_is_kept_too() -> None:
    delta = torch.tensor([2.0, -1.0, 1.0, 0.5, -2.0, 0.0, 3.0, 2.0])
    # ranks from the smallest: 0 .5 1 | 1 2 2 | 2 3
    assert band(delta, 0.375, 0.75).tolist() == [2.0, -1.0, 1.0, 0.0, -2.0, 0.0, 0.0, 2.0]


def test_both_counts_survive_the_rounding_of_their_fractions() -> None:
    n = 100
    for k in range(n):
        assert band(torch.arange(1.0, n + 1), k / n, (k + 1) / n).count_nonzero() == 1, k
    assert ceiling_of(0.07, 100) == 7  # 0.07 * 100 is 7.000000000000001


@pytest.mark.parametrize(("beta", "gamma"), [(0.9, 0.8), (0.9, 0.9)])
def test_tails_that_leave_nothing_are_refused(beta: float, gamma: float) -> None:
    with pytest.raises(InputError, match=r"beta: 0\.9 is not below gamma"):
        merged_vector("breadcrumbs", network(2), beta=beta, gamma=gamma)
