import pytest
import torch
from torch import Tensor

from tests.laws.samples import assert_same, in_pieces, joined, merged_vector, network


def consensus_of(tau: Tensor, tall_lambda: float, k: int, scaling: float) -> Tensor:
    """Consensus merging as the paper prints it."""
    multi_task = tau.sum(0)
    masks = torch.stack([t.abs() >= (multi_task - t).abs() * tall_lambda for t in tau])
    return scaling * torch.where(masks.sum(0) >= k, multi_task, 0.0)


@pytest.mark.parametrize("k", [1, 2, 3])
@pytest.mark.parametrize("tasks", [1, 2, 8])
def test_consensus_equals_the_printed_formula(tasks: int, k: int) -> None:
    layers = network(tasks)
    merged = merged_vector("consensus", layers, k=k, tall_lambda=0.6)
    reference = consensus_of(joined(layers), 0.6, k, 0.4)
    assert_same(merged, reference)


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
