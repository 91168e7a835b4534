import pytest
import torch
from torch import Tensor

from merganser.linalg.svd import factorise
from merganser.measures import (
    accuracy_drop_rate,
    interference,
    interference_after_tsv_m,
    normalised_accuracy,
)

INDIVIDUAL = {"digits": 0.8, "street": 0.5}


def stacked(deltas: list[Tensor], kept: int) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    """Return the tasks' leading U (M, K), S (K,) and V^T (K, N)."""
    factors = [factorise(delta, kept) for delta in deltas]
    return [f.u for f in factors], [f.s[:kept] for f in factors], [f.vh for f in factors]


def random_deltas(count: int, shape: tuple[int, int] = (24, 16)) -> list[Tensor]:
    generator = torch.Generator().manual_seed(count)
    return [torch.randn(shape, generator=generator) for _ in range(count)]


def test_normalised_accuracy_is_the_mean_of_the_ratios() -> None:
    assert normalised_accuracy({"digits": 0.4, "street": 0.5}, INDIVIDUAL) == pytest.approx((0.5 + 1.0) / 2)


def test_accuracy_drop_rate_compares_the_two_means() -> None:
    assert accuracy_drop_rate({"digits": 0.4, "street": 0.5}, INDIVIDUAL) == pytest.approx(1 - 0.45 / 0.65)


def test_the_individual_models_have_normalised_accuracy_one_and_no_drop() -> None:
    assert normalised_accuracy(INDIVIDUAL, INDIVIDUAL) == 1
    assert accuracy_drop_rate(INDIVIDUAL, INDIVIDUAL) == 0


def test_interference_of_two_equal_rank_one_tasks_worked_by_hand() -> None:
    u, v = torch.tensor([[1.0], [0.0]]), torch.tensor([[0.0, 1.0]])
    # U^T U - I and V^T V - I are [[0, 1], [1, 0]] both, so the product is diag(3, 2) and its entries sum to 5.
    assert interference([u, u], [torch.tensor([2.0]), torch.tensor([3.0])], [v, v]) == pytest.approx(5)


def test_interference_of_one_task_is_zero() -> None:
    assert interference(*stacked(random_deltas(1), 6)) == pytest.approx(0, abs=1e-4)


@pytest.mark.parametrize("side", ["left", "right"])
def test_interference_is_zero_when_the_singular_spaces_of_one_side_are_orthogonal(side: str) -> None:
    first, second = random_deltas(2, (8, 8))
    deltas = [torch.cat([first, torch.zeros(8, 8)]), torch.cat([torch.zeros(8, 8), second])]
    if side == "right":
        deltas = [delta.T for delta in deltas]
    assert interference(*stacked(deltas, 4)) == pytest.approx(0, abs=1e-4)


@pytest.mark.parametrize("tasks", [2, 4])
@pytest.mark.parametrize("shape", [(24, 16), (16, 24), (16, 16)])
def test_interference_is_gone_after_tsv_m(tasks: int, shape: tuple[int, int]) -> None:
    parts = stacked(random_deltas(tasks, shape), 16 // tasks)
    assert interference(*parts) > 1
    assert interference_after_tsv_m(*parts) < 1e-6 * interference(*parts)


def test_directions_that_tasks_share_exactly_still_interfere_after_tsv_m() -> None:
    same = random_deltas(1)[0]
    assert interference_after_tsv_m(*stacked([same, same], 4)) > 0.1
