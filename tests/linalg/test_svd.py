import numpy as np
import pytest
import torch
from torch import Tensor

from merganser.errors import InputError
from merganser.linalg.decompositions import Factors
from merganser.linalg.svd import (
    compact,
    concatenated_low_rank,
    factorise,
    factorise_low_rank,
    leading,
    numerical_rank,
    oriented,
    rebuilt,
    truncations,
)

SHAPES = [(40, 40), (90, 30), (30, 90), (1, 8), (8, 1), (16, 3 * 4 * 4)]


def with_spectrum(spectrum: Tensor, shape: tuple[int, int], seed: int = 0) -> Tensor:
    """Make a float32 matrix with (nearly) the given singular values."""
    generator = torch.Generator().manual_seed(seed)
    u, _ = torch.linalg.qr(torch.randn(shape[0], len(spectrum), generator=generator, dtype=torch.float64))
    v, _ = torch.linalg.qr(torch.randn(shape[1], len(spectrum), generator=generator, dtype=torch.float64))
    return ((u * spectrum.double()) @ v.mT).float()


def low_rank_plus_noise(shape: tuple[int, int], seed: int = 0) -> Tensor:
    """Make what a fine-tuned layer's delta looks like."""
    generator = torch.Generator().manual_seed(seed)
    left, right = torch.randn(shape[0], 5, generator=generator), torch.randn(5, shape[1], generator=generator)
    return 1e-3 * (left @ right + 0.1 * torch.randn(shape, generator=generator))


def assert_orthonormal(columns: Tensor, tolerance: float = 1e-6) -> None:
    gram = columns.double().mT @ columns.double()
    torch.testing.assert_close(gram, torch.eye(len(gram), dtype=gram.dtype), rtol=0, atol=tolerance)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("rank", [1, 12, None])
def test_leading_vectors_rebuild_what_float64_rebuilds(shape: tuple[int, int], rank: int | None) -> None:
    matrix = low_rank_plus_noise(shape)
    u, s, vh = np.linalg.svd(matrix.double().numpy(), full_matrices=False)
    factors = factorise(matrix, rank)
    expected = (u[:, :rank] * s[:rank]) @ vh[:rank]
    assert np.linalg.norm(rebuilt(factors).double().numpy() - expected) <= 1e-6 * np.linalg.norm(expected)
    np.testing.assert_allclose(factors.s.double().numpy(), s, atol=1e-7 * s[0], rtol=0)


@pytest.mark.parametrize("shape", SHAPES)
def test_factors_are_thin_and_keep_the_whole_spectrum(shape: tuple[int, int]) -> None:
    factors = factorise(low_rank_plus_noise(shape), 3)
    k = min(3, *shape)
    assert [tuple(part.shape) for part in factors] == [(shape[0], k), (min(shape),), (k, shape[1])]
    assert all(part.dtype == torch.float32 and part.is_contiguous() for part in factors)


def test_a_layer_of_a_real_size_is_as_exact_as_its_dtype_allows() -> None:
    matrix = low_rank_plus_noise((768, 320))
    u, s, vh = torch.linalg.svd(matrix.double(), full_matrices=False)
    expected = (u[:, :96] * s[:96]) @ vh[:96]
    found = Factors(*(part.double() for part in factorise(matrix, 96)))
    assert (rebuilt(found) - expected).norm() <= 2e-7 * expected.norm()


@pytest.mark.parametrize("smallest", [1e-3, 1e-5, 1e-6])
def test_small_singular_values_that_count_have_exact_vectors(smallest: float) -> None:
    matrix = with_spectrum(torch.tensor([1.0, 0.5, smallest]), (6, 4))
    u, s, vh = torch.linalg.svd(matrix.double(), full_matrices=False)
    found = factorise(matrix)
    assert numerical_rank(found.s, (6, 4)) >= 3
    for k in range(3):  # each vector up to its sign
        assert abs(float(u[:, k] @ found.u[:, k].double())) >= 1 - 1e-6
        assert abs(float(vh[k] @ found.vh[k].double())) >= 1 - 1e-6
    assert abs(float(s[2]) - float(found.s[2])) <= 1e-6 * float(s[2]) + 1e-9


def test_small_singular_values_close_together_keep_orthonormal_vectors() -> None:
    found = factorise(with_spectrum(torch.tensor([1.0, 1.2e-6, 1.1e-6]), (3, 3)))
    assert numerical_rank(found.s, (3, 3)) == 3
    assert_orthonormal(found.u)
    assert_orthonormal(found.vh.mT)


def test_orientation_makes_the_largest_entry_of_each_left_vector_positive() -> None:
    factors = factorise(low_rank_plus_noise((9, 7)))
    turned = oriented(Factors(-factors.u, factors.s, -factors.vh))
    assert all(map(torch.equal, turned, oriented(factors)))
    assert bool((turned.u.max(0).values >= -turned.u.min(0).values).all())
    torch.testing.assert_close(rebuilt(turned), rebuilt(factors))


@pytest.mark.parametrize("shape", [(40, 40), (90, 30), (30, 90)])
@pytest.mark.parametrize("rank", [0, 1, 4])
def test_there_are_no_vectors_beyond_the_rank_of_the_matrix(shape: tuple[int, int], rank: int) -> None:
    matrix = with_spectrum(torch.ones(4)[:rank], shape)
    factors = factorise(matrix, 10)
    assert [tuple(part.shape) for part in factors] == [(shape[0], rank), (min(shape),), (rank, shape[1])]
    assert_orthonormal(factors.u)
    assert_orthonormal(factors.vh.mT)
    assert (rebuilt(factors) - matrix).norm() <= 1e-6 * max(float(matrix.norm()), 1e-30)


def test_a_weight_does_not_ask_for_vectors_that_rounding_had_cut_off() -> None:
    factors = factorise(with_spectrum(torch.tensor([1.0, 0.5]), (12, 9)))
    edge = torch.finfo(torch.float32).eps * 12 * factors.s[0]
    s = torch.cat([factors.s[:2], torch.nextafter(edge, torch.tensor(1.0)).view(1), factors.s[3:]])
    assert len(leading(factors._replace(s=s), 3).s) == 2


def test_repeated_singular_values_still_multiply_out() -> None:
    matrix = with_spectrum(torch.tensor([2.0, 2.0, 2.0, 1.0, 1.0]), (12, 7))
    factors = factorise(matrix)
    assert_orthonormal(factors.u)
    assert_orthonormal(factors.vh.mT)
    assert (rebuilt(factors) - matrix).norm() <= 1e-6 * matrix.norm()


@pytest.mark.parametrize("shape", [(60, 25), (25, 60)])
def test_factorising_again_gives_the_same_bits(shape: tuple[int, int]) -> None:
    matrix = low_rank_plus_noise(shape)
    assert all(map(torch.equal, factorise(matrix, 9), factorise(matrix.clone(), 9)))


def test_a_float64_matrix_is_decomposed_to_float64_precision() -> None:
    matrix = low_rank_plus_noise((20, 9)).double()
    assert (rebuilt(factorise(matrix)) - matrix).norm() <= 1e-14 * matrix.norm()


def test_the_compact_decomposition_stops_at_the_numerical_rank_of_the_stored_dtype() -> None:
    matrix = with_spectrum(torch.tensor([1.0, 0.1, 0.01]), (30, 20))
    u, s, vh = compact(matrix)
    assert (u.shape[1], len(s), vh.shape[0]) == (3, 3, 3)
    assert u.dtype == torch.float64
    assert (rebuilt(Factors(u, s, vh)) - matrix).norm() <= 1e-6 * matrix.norm()


def test_leading_triples_end_at_the_numerical_rank() -> None:
    factors = factorise(with_spectrum(torch.tensor([1.0, 0.5]), (12, 9)), 6)
    assert [len(leading(factors, k).s) for k in (0, 1, 2, 5, 9)] == [0, 1, 2, 2, 2]


def test_too_few_stored_vectors_are_refused_with_the_share_to_ask_for() -> None:
    factors = factorise(low_rank_plus_noise((20, 10)), 4)
    with pytest.raises(InputError, match=r"decompose.rank_fraction is too small: .* 20 x 10 .* 7 .* 4 .* 0.7 or more"):
        leading(factors, 7)


def test_truncation_by_hand() -> None:
    matrix = torch.tensor([[3.0, 0.0, 0.0], [0.0, -2.0, 0.0]])
    ((left, right),) = truncations([matrix], 1)
    torch.testing.assert_close(left @ right, torch.tensor([[3.0, 0.0, 0.0], [0.0, 0.0, 0.0]], dtype=torch.float64))
    ((left, right),) = truncations([matrix], 0)
    assert not (left @ right).any()


@pytest.mark.parametrize("shape", [(40, 30), (30, 40)])
@pytest.mark.parametrize("smallest", [1e-2, 1e-6, 1e-12])
def test_a_truncation_is_the_best_one_however_small_the_singular_values_where_it_cuts(
    shape: tuple[int, int], smallest: float
) -> None:
    matrix = with_spectrum(torch.tensor([1.0, 0.5, 1.3 * smallest, 1.2 * smallest, 1.1 * smallest]), shape)
    u, s, vh = torch.linalg.svd(matrix.double(), full_matrices=False)
    for rank in (1, 2, 3, 4):
        ((left, right),) = truncations([matrix], rank)
        assert float((left @ right - (u[:, :rank] * s[:rank]) @ vh[:rank]).norm()) <= 1e-6


@pytest.mark.parametrize(("spectrum", "rank"), [([], 0), ([0.0, 0.0], 0), ([1.0, 1e-9], 1), ([1.0, 1e-3, 0.0], 2)])
def test_numerical_rank_by_hand(spectrum: list[float], rank: int) -> None:
    assert numerical_rank(torch.tensor(spectrum), (8, 8)) == rank


def adapter(shape: tuple[int, int], rank: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Draw a float32 adapter."""
    generator = torch.Generator().manual_seed(seed)
    left, right = torch.randn(shape[0], rank, generator=generator), torch.randn(rank, shape[1], generator=generator)
    return 0.02 * left, right


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("rank", [0, 1, 4, 20])
def test_an_adapters_factors_are_those_of_its_product(shape: tuple[int, int], rank: int) -> None:
    left, right = adapter(shape, rank)
    product = left.double() @ right.double()
    factors = factorise_low_rank(left, right)
    known = min(rank, *shape)
    assert [tuple(part.shape) for part in factors] == [(shape[0], known), (known,), (known, shape[1])]
    assert all(part.dtype == torch.float32 and part.is_contiguous() for part in factors)
    assert_orthonormal(factors.u)
    assert_orthonormal(factors.vh.mT)
    assert (rebuilt(factors).double() - product).norm() <= 1e-6 * product.norm()
    exact = np.linalg.svd(product.numpy(), compute_uv=False)
    np.testing.assert_allclose(factors.s.numpy(), exact[:known], atol=1e-6 * exact[0], rtol=0)


@pytest.mark.parametrize("shape", [(40, 30), (30, 40)])
def test_an_adapter_of_dependent_columns_has_the_rank_of_its_product(shape: tuple[int, int]) -> None:
    left, right = adapter(shape, 3)
    assert len(factorise_low_rank(torch.cat([left, left], 1), torch.cat([right, right])).s) == 3
    assert len(factorise_low_rank(torch.zeros_like(left), right).s) == 0


@pytest.mark.parametrize("shape", [(40, 40), (90, 30), (30, 90), (1, 8), (8, 1)])
@pytest.mark.parametrize("ranks", [[3], [2, 2], [1, 0, 7, 3], [20] * 8])
def test_adapters_decompose_jointly_as_their_products_do(shape: tuple[int, int], ranks: list[int]) -> None:
    left, right = zip(*(adapter(shape, rank, seed) for seed, rank in enumerate(ranks)), strict=True)
    products = torch.stack([a.double() @ b.double() for a, b in zip(left, right, strict=True)])
    u, s, vh = concatenated_low_rank(left, right)
    known = min(sum(min(rank, *shape) for rank in ranks), shape[0])
    assert (u.shape, vh.shape) == ((shape[0], known), (known, len(ranks) * shape[1]))
    assert u.dtype == torch.float64
    assert_orthonormal(u, 1e-12)
    assert_orthonormal(vh.mT, 1e-12)
    exact = np.linalg.svd(np.hstack(list(products.numpy())), compute_uv=False)
    np.testing.assert_allclose(s.numpy(), exact[:known], rtol=0, atol=1e-12 * float(s.sum()))
    blocks = vh.unflatten(1, (len(ranks), shape[1])).transpose(0, 1)
    assert ((u * s) @ blocks - products).norm() <= 1e-12 * products.norm()


def test_identical_adapters_have_the_joint_rank_of_one() -> None:
    left, right = adapter((40, 30), 4)
    assert len(concatenated_low_rank([left] * 8, [right] * 8).s) == 4
    assert len(concatenated_low_rank([left, -left], [right, right]).s) == 4
