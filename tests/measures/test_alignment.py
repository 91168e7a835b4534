import numpy as np
import pytest
import torch
from torch import Tensor

from merganser.linalg.svd import compact, factorise
from merganser.measures.alignment import (
    EPS,
    approximation_rank,
    delta_cosines,
    delta_inner_products,
    effective_rank,
    energy_share,
    leading_directions,
    subspace_alignment,
    truncation_error,
)

SHAPES = [(24, 16), (16, 24), (16, 16), (1, 9), (9, 1)]


def random_matrix(shape: tuple[int, int], seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def low_rank(shape: tuple[int, int], rank: int) -> Tensor:
    return random_matrix((shape[0], rank), 1) @ random_matrix((rank, shape[1]), 2)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_matrix_is_aligned_with_itself_up_to_eps(shape: tuple[int, int]) -> None:
    matrix = random_matrix(shape)
    found = subspace_alignment(matrix, leading_directions(compact(matrix)))
    assert (1 - EPS**2) ** 0.5 <= found <= 1 + 1e-12


@pytest.mark.parametrize("shape", SHAPES[:3])
def test_alignment_equals_the_printed_formula(shape: tuple[int, int]) -> None:
    delta, merged = random_matrix(shape), low_rank(shape, 5) + 0.01 * random_matrix(shape, 3)
    u, s, _ = np.linalg.svd(merged.double().numpy(), full_matrices=False)
    k = next(k for k in range(len(s) + 1) if (s[k:] ** 2).sum() <= EPS**2 * (s**2).sum())
    assert 0 < k < min(shape)
    projector, D = u[:, :k] @ u[:, :k].T, delta.double().numpy()
    expected = np.linalg.norm(projector @ D) / np.linalg.norm(D)
    assert subspace_alignment(delta, leading_directions(compact(merged))) == pytest.approx(expected, rel=1e-6)


def test_alignment_with_orthogonal_columns_or_nothing_is_zero_and_of_nothing_undefined() -> None:
    first, second = torch.zeros(8, 5), torch.zeros(8, 5)
    first[:4], second[4:] = random_matrix((4, 5)), random_matrix((4, 5), 1)
    assert subspace_alignment(first, leading_directions(compact(second))) == pytest.approx(0, abs=1e-6)
    assert subspace_alignment(first, leading_directions(compact(torch.zeros(8, 5)))) == 0
    assert np.isnan(subspace_alignment(torch.zeros(8, 5), leading_directions(compact(first))))


def test_directions_stop_at_the_numerical_rank() -> None:
    assert leading_directions(compact(low_rank((24, 16), 3)), eps=0).shape == (24, 3)


@pytest.mark.parametrize(("eps", "rank"), [(0.0, 3), (0.05, 3), (0.2, 2), (0.7, 1), (1.0, 0)])
def test_approximation_rank_worked_by_hand(eps: float, rank: int) -> None:
    # of squares 81, 16 and 3, truncations lose 3 of 100 and 19 of 100: 0.17 and 0.44 of the norm
    assert approximation_rank(torch.tensor([9.0, 4.0, 3**0.5, 0.0]), eps) == rank


def test_effective_rank_of_equal_values_is_their_number_and_of_one_value_one() -> None:
    assert effective_rank(torch.full((7,), 0.3)) == pytest.approx(7)
    assert effective_rank(torch.tensor([5.0, 0, 0])) == pytest.approx(1)
    assert effective_rank(torch.zeros(4)) == 0


def test_effective_rank_equals_its_formula() -> None:
    shares = np.array([0.5, 0.25, 0.25])
    expected = np.exp(-(shares * np.log(shares)).sum())
    assert effective_rank(torch.tensor(8 * shares)) == pytest.approx(expected)


@pytest.mark.parametrize("k", [0, 1, 5, 16])
def test_truncation_error_and_energy_are_those_of_the_truncated_matrix(k: int) -> None:
    matrix = random_matrix((24, 16))
    u, s, vh = np.linalg.svd(matrix.double().numpy(), full_matrices=False)
    lost = np.linalg.norm(matrix.double().numpy() - (u[:, :k] * s[:k]) @ vh[:k]) / np.linalg.norm(s)
    spectrum = factorise(matrix).s
    assert truncation_error(spectrum, k) == pytest.approx(lost, rel=1e-6, abs=1e-6)
    assert energy_share(spectrum, k) == pytest.approx(1 - lost**2, rel=1e-6, abs=1e-6)


def test_a_zero_spectrum_has_no_shares() -> None:
    assert np.isnan(energy_share(torch.zeros(3), 1))
    assert np.isnan(truncation_error(torch.zeros(3), 1))


def test_cosines_of_layers_add_up_to_those_of_the_whole_vectors() -> None:
    first, second = torch.stack([random_matrix((3, 4), s) for s in (0, 1)]), torch.randn(2, 5)
    whole = torch.cat([first.flatten(1), second], 1).double().numpy()
    expected = whole[0] @ whole[1] / np.linalg.norm(whole[0]) / np.linalg.norm(whole[1])
    found = delta_cosines(delta_inner_products(first) + delta_inner_products(second))
    assert float(found[0, 1]) == pytest.approx(expected)
    assert float(found[1, 0]) == pytest.approx(expected)


def test_cosines_are_one_with_itself_minus_one_with_the_opposite_and_undefined_with_nothing() -> None:
    vector = random_matrix((3, 4))
    found = delta_cosines(delta_inner_products(torch.stack([vector, -2 * vector, 0 * vector])))
    assert found[:2, :2].tolist() == [[1, pytest.approx(-1)], [pytest.approx(-1), 1]]
    assert found[2].isnan().all()
    assert found[:, 2].isnan().all()
