import numpy as np
import pytest
import torch
from torch import Tensor

from merganser.linalg.decompositions import Factors
from merganser.linalg.svd import factorise, leading
from merganser.measures.interference import row_space_interference, task_interference, task_interference_after_tsv_m

SHAPES = [(24, 16), (16, 24), (16, 16)]


def cut(deltas: list[Tensor], kept: int) -> list[Factors]:
    """Return the tasks' leading U (M, K), S (K,) and V^T (K, N)."""
    return [leading(factorise(delta, kept), kept) for delta in deltas]


def random_deltas(count: int, shape: tuple[int, int] = (24, 16)) -> list[Tensor]:
    generator = torch.Generator().manual_seed(count)
    return [torch.randn(shape, generator=generator) for _ in range(count)]


def test_interference_of_two_equal_rank_one_tasks_worked_by_hand() -> None:
    u, v = torch.tensor([[1.0], [0.0]]), torch.tensor([[0.0, 1.0]])
    # U^T U - I and V^T V - I are [[0, 1], [1, 0]] both, so the product is diag(3, 2) and its entries sum to 5.
    factors = [Factors(u, torch.tensor([2.0]), v), Factors(u, torch.tensor([3.0]), v)]
    assert task_interference(factors) == pytest.approx(5)


@pytest.mark.parametrize("tasks", [2, 4])
@pytest.mark.parametrize("shape", SHAPES)
def test_interference_equals_the_printed_formula(tasks: int, shape: tuple[int, int]) -> None:
    deltas, kept = random_deltas(tasks, shape), 16 // tasks
    u, s, vh = zip(*(np.linalg.svd(delta.double().numpy(), full_matrices=False) for delta in deltas), strict=True)
    U = np.hstack([each[:, :kept] for each in u])
    S = np.diag(np.concatenate([each[:kept] for each in s]))
    V = np.vstack([each[:kept] for each in vh]).T
    expected = np.abs((U.T @ U - np.eye(len(S))) @ S @ (V.T @ V - np.eye(len(S)))).sum()
    assert task_interference(cut(deltas, kept)) == pytest.approx(expected, rel=1e-5)


def test_interference_of_one_task_is_zero() -> None:
    assert task_interference(cut(random_deltas(1), 6)) == pytest.approx(0, abs=1e-4)


@pytest.mark.parametrize("side", ["left", "right"])
def test_interference_is_zero_when_the_singular_spaces_of_one_side_are_orthogonal(side: str) -> None:
    first, second = random_deltas(2, (8, 8))
    deltas = [torch.cat([first, torch.zeros(8, 8)]), torch.cat([torch.zeros(8, 8), second])]
    if side == "right":
        deltas = [delta.T for delta in deltas]
    assert task_interference(cut(deltas, 4)) == pytest.approx(0, abs=1e-4)


@pytest.mark.parametrize("tasks", [2, 4])
@pytest.mark.parametrize("shape", SHAPES)
def test_interference_is_gone_after_tsv_m(tasks: int, shape: tuple[int, int]) -> None:
    factors = cut(random_deltas(tasks, shape), 16 // tasks)
    assert task_interference(factors) > 1
    assert task_interference_after_tsv_m(factors) < 1e-6 * task_interference(factors)


def test_directions_that_tasks_share_exactly_still_interfere_after_tsv_m() -> None:
    same = random_deltas(1)[0]
    assert task_interference_after_tsv_m(cut([same, same], 4)) > 0.1


@pytest.mark.parametrize("shape", SHAPES)
def test_row_space_interference_equals_the_whole_product(shape: tuple[int, int]) -> None:
    deltas = random_deltas(3, shape)
    found = row_space_interference(cut(deltas, 5))
    scaled = []
    for delta in deltas:
        _, s, vh = np.linalg.svd(delta.double().numpy(), full_matrices=False)
        scaled.append(np.diag(s[:5] / np.linalg.norm(s[:5])) @ vh[:5])
    for i, first in enumerate(scaled):
        for j, second in enumerate(scaled):
            assert float(found[i, j]) == pytest.approx(np.linalg.norm(first @ second.T), rel=1e-5)


def test_row_space_interference_of_orthogonal_row_spaces_is_zero_and_of_one_direction_one() -> None:
    first, second = torch.zeros(6, 8), torch.zeros(6, 8)
    first[:, :4], second[:, 4:] = random_deltas(2, (6, 4))
    found = row_space_interference([*cut([first, second], 4), *cut([first[:, :1] @ first[:1]], 4)])
    assert float(found[0, 1]) == pytest.approx(0, abs=1e-6)
    assert float(found[1, 2]) == pytest.approx(0, abs=1e-6)
    assert float(found[2, 2]) == pytest.approx(1)


def test_row_space_interference_with_a_zero_matrix_is_undefined() -> None:
    found = row_space_interference(cut([random_deltas(1)[0], torch.zeros(24, 16)], 4))
    assert found.isnan().tolist() == [[False, True], [True, True]]
