import numpy as np
import pytest
import torch
from torch import Tensor

from merganser.linalg.joint import polar


def stack_of(bases: int, rows: int, columns: int, apart: float, dtype: torch.dtype = torch.float32) -> Tensor:
    """Set orthonormal bases side by side that differ by about `apart`: the closer, the worse conditioned."""
    generator = torch.Generator().manual_seed(0)
    shared = torch.randn(rows, columns, generator=generator, dtype=torch.float64)
    moved = (shared + apart * torch.randn(shared.shape, generator=generator, dtype=torch.float64) for _ in range(bases))
    return torch.cat([torch.linalg.qr(basis).Q for basis in moved], dim=1).to(dtype)


def procrustes(matrix: Tensor) -> np.ndarray:
    """Return P Q^T of a full-rank matrix by numpy in float64."""
    p, _, qh = np.linalg.svd(matrix.double().numpy(), full_matrices=False)
    return p @ qh


@pytest.mark.parametrize("apart", [10.0, 0.1, 1e-3])
@pytest.mark.parametrize(("rows", "bases", "columns"), [(96, 8, 8), (120, 4, 10), (50, 2, 3)])
def test_stacks_of_related_bases_are_solved_to_five_digits(rows: int, bases: int, columns: int, apart: float) -> None:
    stack = stack_of(bases, rows, columns, apart)
    found, exact = polar(stack), procrustes(stack)
    assert found.dtype == torch.float32
    assert np.linalg.norm(found.double().numpy() - exact) <= 1e-5 * np.linalg.norm(exact)


def test_the_columns_become_orthonormal() -> None:
    found = polar(stack_of(4, 60, 10, 0.01)).double()
    torch.testing.assert_close(found.mT @ found, torch.eye(40, dtype=torch.float64), atol=1e-6, rtol=0)


def test_a_wide_matrix_gets_orthonormal_rows() -> None:
    stack = stack_of(4, 60, 10, 0.01)
    assert torch.equal(polar(stack.mT), polar(stack).mT)


def test_orthonormal_columns_stay_as_they_are() -> None:
    basis = stack_of(1, 20, 6, 0.0)
    torch.testing.assert_close(polar(basis), basis)


def test_two_equal_bases_share_the_direction() -> None:
    basis = stack_of(1, 20, 6, 0.0)
    torch.testing.assert_close(polar(torch.cat([basis, basis], 1)), torch.cat([basis, basis], 1) / 2**0.5)


def test_two_bases_equal_but_for_rounding_share_it_too() -> None:
    basis = stack_of(1, 40, 6, 0.0)
    noisy = basis + 1e-7 * torch.randn(basis.shape, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(
        polar(torch.cat([basis, noisy], 1)), torch.cat([basis, basis], 1) / 2**0.5, atol=1e-6, rtol=1e-5
    )


def test_a_direction_up_to_max_m_n_eps_of_the_largest_is_rounding() -> None:
    stack = torch.eye(400, 3)  # the cut is 400 * 1.2e-7 = 4.8e-5
    expected = torch.tensor([[0.5**0.5, 0, 0.5**0.5], [0, 1, 0]])
    for apart, rank in ((3e-5, 2), (3e-4, 3)):  # the third singular value is half as large, relative to the first
        stack[:3, 2] = torch.tensor([1.0, 0.0, apart])
        for found in (polar(stack), polar(stack.double(), torch.float32)):
            assert torch.linalg.matrix_rank(found) == rank
            if rank == 2:
                torch.testing.assert_close(found[:2].float(), expected, atol=1e-4, rtol=0)


def test_polar_by_hand() -> None:
    torch.testing.assert_close(polar(torch.tensor([[0.0, -3.0], [2.0, 0.0]])), torch.tensor([[0.0, -1.0], [1.0, 0.0]]))
    torch.testing.assert_close(polar(torch.tensor([[3.0, 0.0], [4.0, 0.0]])), torch.tensor([[0.6, 0.0], [0.8, 0.0]]))


@pytest.mark.parametrize("shape", [(4, 0), (0, 4)])
def test_nothing_stacked_is_nothing(shape: tuple[int, int]) -> None:
    assert polar(torch.zeros(shape)).shape == shape
