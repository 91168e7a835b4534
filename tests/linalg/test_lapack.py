from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor

from merganser.linalg import lapack
from merganser.linalg.lapack import eigenvalues_, eigh_top_, gram
from tests.support import each


def drawn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def symmetric(upper: Tensor) -> Tensor:
    return upper.triu() + upper.triu(1).mT


def with_eigenvalues(values: list[float]) -> Tensor:
    q, _ = torch.linalg.qr(drawn(len(values), len(values)))
    return (q * torch.tensor(values, dtype=torch.float64)) @ q.mT


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(40, 7), (7, 40), (1, 5), (5, 1), (0, 3), (3, 0), (1100, 600)])
def test_a_gram_matrix_is_exact_on_and_above_the_diagonal(shape: tuple[int, int], dtype: torch.dtype) -> None:
    matrix = drawn(*shape, dtype=dtype)
    for side in (matrix, matrix.mT, matrix[::2], matrix[:, 1:], matrix.mT[::2, 1:]):
        expected = side.double().mT @ side.double()
        torch.testing.assert_close(gram(side).triu(), expected.triu(), rtol=1e-13, atol=1e-12)


def test_gram_matrices_add_up_in_place() -> None:
    first, second = drawn(9, 4), drawn(6, 4, seed=1)
    summed = gram(first)
    assert gram(second, summed, -1.0) is summed
    torch.testing.assert_close(symmetric(summed), first.mT @ first - second.mT @ second)


SPECTRA = {
    "none": [],
    "one": [3.0],
    "distinct": [float(k) for k in range(1, 41)],
    "repeated": [1.0] * 20 + [2.0] * 20,
    "all_equal": [2.0] * 40,
    "ill_conditioned": [10.0 ** (-k / 2) for k in range(40)],
    "rank_deficient": [0.0] * 35 + [1.0, 2.0, 3.0, 4.0, 5.0],
    "zero": [0.0] * 40,
}


@each("count", [0, 1, 5, 10, 11, 40, 99])
@pytest.mark.parametrize("spectrum", SPECTRA.values(), ids=SPECTRA)
def test_the_largest_eigenvalues_have_orthonormal_vectors(spectrum: list[float], count: int) -> None:
    matrix = with_eigenvalues(spectrum)
    values, vectors = eigh_top_(matrix.clone(), count)
    kept = min(count, len(matrix))
    assert (values.shape, vectors.shape) == ((len(matrix),), (len(matrix), kept))
    size = max([abs(value) for value in spectrum], default=1.0)
    torch.testing.assert_close(values, torch.tensor(sorted(spectrum), dtype=torch.float64), rtol=0, atol=1e-13 * size)
    torch.testing.assert_close(vectors.mT @ vectors, torch.eye(kept, dtype=torch.float64), rtol=0, atol=1e-13)
    largest = values[len(matrix) - kept :]
    torch.testing.assert_close(matrix @ vectors, vectors * largest, rtol=0, atol=1e-13 * size)


@pytest.mark.parametrize("matrix", [torch.eye(12), torch.diag(torch.arange(12.0)), torch.zeros(12, 12)])
def test_a_block_diagonal_matrix_is_decomposed_too(matrix: Tensor) -> None:
    exact = matrix.double()
    values, vectors = eigh_top_(exact.clone(), 2)
    torch.testing.assert_close(exact @ vectors, vectors * values[-2:])
    torch.testing.assert_close(vectors.mT @ vectors, torch.eye(2, dtype=torch.float64))


def test_entries_below_the_diagonal_are_not_read() -> None:
    matrix = with_eigenvalues([1.0, 2.0, 5.0, 9.0])
    spoilt = matrix.triu() + torch.full((4, 4), float("nan"), dtype=torch.float64).tril(-1)
    torch.testing.assert_close(eigenvalues_(spoilt), eigenvalues_(matrix.clone()))


@pytest.mark.parametrize("spectrum", SPECTRA.values(), ids=SPECTRA)
def test_in_little_memory_the_vectors_are_the_same(spectrum: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    matrix = with_eigenvalues(spectrum)
    monkeypatch.setattr(lapack, "MANY", 0)
    values, vectors = eigh_top_(matrix.clone(), len(matrix))
    torch.testing.assert_close(values, torch.tensor(sorted(spectrum), dtype=torch.float64), rtol=0, atol=1e-12)
    torch.testing.assert_close(vectors.mT @ vectors, torch.eye(len(spectrum), dtype=torch.float64), rtol=0, atol=1e-11)
    torch.testing.assert_close(vectors * values @ vectors.mT, matrix, rtol=0, atol=1e-11)


@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
def test_nan_and_infinity_are_refused(wrong: float) -> None:
    matrix = torch.eye(5, dtype=torch.float64)
    matrix[2, 2] = wrong
    with pytest.raises(ValueError, match="NaN or infinity"):
        eigh_top_(matrix, len(matrix))


def test_threads_at_the_same_time_give_the_same_bits() -> None:
    matrices = [drawn(300, 120, seed=seed, dtype=torch.float32) for seed in range(8)]

    def decompose(matrix: Tensor) -> tuple[Tensor, ...]:
        return (*eigh_top_(gram(matrix), 20), *eigh_top_(gram(matrix), matrix.shape[1]))

    alone = [decompose(matrix) for matrix in matrices]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(decompose, matrices))
    assert all(
        torch.equal(a, b) for one, other in zip(alone, together, strict=True) for a, b in zip(one, other, strict=True)
    )
