from collections.abc import Sequence

import numpy as np
import pytest
import torch

from merganser import registry
from tests.laws.references import Array, Given, PerTask, flat, given, laid_out, unflat
from tests.laws.samples import assert_same, in_pieces, merged_vector, network
from tests.laws.test_ties import reference as ties

CASES = [{"k": 3, "tall_lambda": 0.6}]


def reference(
    layers: Sequence[Given], inner: str, density: PerTask, tall_lambda: float, k: int, scaling: float
) -> list[Array]:
    """Mask what the inner method merges, unscaled, by how many tasks want it."""
    tau = flat(layers)
    merged = laid_out(ties(layers, density, 1.0, "sum")) if inner == "ties" else tau.sum(0)
    wanted = (np.abs(tau) >= tall_lambda * np.abs(merged - tau)).sum(0)
    return unflat(scaling * np.where(wanted >= k, merged, 0), layers)


@pytest.mark.parametrize("tasks", [1, 2, 8])
@pytest.mark.parametrize("density", [0.2, 1.0])
@pytest.mark.parametrize("tall_lambda", [0.4, 0.7])
def test_consensus_ties_masks_what_ties_merges(tasks: int, density: PerTask, tall_lambda: float) -> None:
    entry = {"inner": "ties", "density": density, "tall_lambda": tall_lambda, "k": 2}  # as in params.yaml
    layers = network(tasks)
    merged = merged_vector("consensus", layers, **registry.get("consensus").validate("methods.consensus_ties", entry))
    expected = laid_out(reference(given(layers), "ties", density, tall_lambda, 2, 0.4))
    assert tasks == 1 or expected.any()
    assert_same(merged, torch.from_numpy(expected))


def test_consensus_ties_that_asks_for_nobody_is_ties() -> None:
    layers = network(5)
    summed = merged_vector("ties", layers, averaging="sum")
    assert torch.equal(merged_vector("consensus", layers, inner="ties", k=0, scaling=1.0), summed)


def test_consensus_ties_by_hand() -> None:
    # All kept, the signs elected are + + - and who agrees adds up to 6, 4, -2. Against what that has beside each task
    # at 1: 2 of 4 no, 4 of 2 yes; 4 of 0 yes, -1 of 5 no; 1 of -3 no, -2 of 0 yes.
    layers = in_pieces(torch.tensor([[2.0, 4.0, 1.0, 0.0], [4.0, -1.0, -2.0, 0.0]]))
    values = {"inner": "ties", "density": 1.0, "tall_lambda": 1.0, "scaling": 1.0}
    assert not merged_vector("consensus", layers, **values).any()
    assert merged_vector("consensus", layers, k=1, **values).tolist() == [6.0, 4.0, -2.0, 0.0]


def test_consensus_that_asks_for_nobody_is_task_arithmetic() -> None:
    layers = network(5)
    assert torch.equal(merged_vector("consensus", layers, k=0), merged_vector("task_arithmetic", layers))


def test_one_task_agrees_with_nobody_and_leaves_the_base() -> None:
    assert not merged_vector("consensus", network(1), k=2).any()


def test_consensus_by_hand() -> None:
    # Sums 5, -1, 10, 0. Against the others at 0.4: 1 of 4 no, 4 of 1 yes; 1 of -2 yes, -2 of 1 yes;
    # 1 of 9 no, 9 of 1 yes; 2 of -2 yes, -2 of 2 yes.
    layers = in_pieces(torch.tensor([[1.0, 1.0, 1.0, 2.0], [4.0, -2.0, 9.0, -2.0]]))
    assert merged_vector("consensus", layers, scaling=1.0).tolist() == [0.0, -1.0, 0.0, 0.0]
    assert merged_vector("consensus", layers, scaling=1.0, k=1).tolist() == [5.0, -1.0, 10.0, 0.0]


def test_an_entry_at_the_bound_is_wanted() -> None:
    layers = in_pieces(torch.tensor([[2.0, 2.0], [4.0, 4.1]]))
    assert merged_vector("consensus", layers, tall_lambda=0.5, scaling=1.0).tolist() == pytest.approx([6.0, 0.0])
