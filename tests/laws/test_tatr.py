from collections.abc import Sequence

import numpy as np
import pytest
import torch

from tests.laws.references import Array, Given, counted, flat, unflat
from tests.laws.samples import in_pieces, merged_vector, network


def reference(layers: Sequence[Given], *, density: float, scaling: float) -> list[Array]:
    """Leave out the most sensitive entries of the whole vector, and add the tasks up."""
    tau = flat(layers)
    sizes = np.abs(tau)
    sensitive = sum(
        (one * other for i, one in enumerate(sizes) for j, other in enumerate(sizes) if i < j), np.zeros(tau.shape[1])
    )
    dropped = tau.shape[1] - counted(density, tau.shape[1])
    least = np.sort(sensitive)[::-1][dropped - 1] if dropped else np.inf
    trusted = (sensitive < least * (1 - 1e-12)) | (sensitive == 0)
    return unflat(scaling * np.where(trusted, tau.sum(0), 0), layers)


CASES = [{"density": 0.5}, {"density": 1.0}]


def test_tatr_by_hand() -> None:
    # The products are 4, 6, 0 and 6: a quarter to be left out takes both sixes, half of the entries no more.
    layers = in_pieces(torch.tensor([[2.0, -3.0, 5.0, 6.0], [2.0, 2.0, 0.0, 1.0]]))
    for density, kept in ((1.0, [4.0, -1.0, 5.0, 7.0]), (0.75, [4.0, 0.0, 5.0, 0.0]), (0.5, [4.0, 0.0, 5.0, 0.0])):
        assert merged_vector("tatr", layers, density=density, scaling=1.0).tolist() == kept
    assert merged_vector("tatr", layers, density=0.1, scaling=1.0).tolist() == [0.0, 0.0, 5.0, 0.0]  # nobody else's


def test_of_three_tasks_each_two_count() -> None:
    layers = in_pieces(torch.tensor([[1.0, 3.0], [1.0, 0.0], [1.0, 0.5]]))  # products 3 and 1.5
    assert merged_vector("tatr", layers, density=0.5, scaling=1.0).tolist() == [0.0, 3.5]


@pytest.mark.parametrize(("tasks", "density"), [(1, 0.3), (4, 1.0)])
def test_with_one_task_or_all_entries_it_is_task_arithmetic(tasks: int, density: float) -> None:
    layers = network(tasks)
    expected = merged_vector("task_arithmetic", layers, scaling=0.3)
    assert torch.equal(merged_vector("tatr", layers, density=density), expected)
