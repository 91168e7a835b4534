"""Matrices that a GPU decomposes together, as each alone on the CPU."""

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from merganser.inputs.layers import LayerDeltas
from merganser.linalg import lapack
from merganser.linalg.decompositions import Factors
from merganser.linalg.svd import compact, compact_each, factorise, factorise_all, numerical_rank, rebuilt, truncations
from merganser.operators.subspaces import specifics
from tests.gpu import pretended
from tests.linalg.test_svd import assert_orthonormal, low_rank_plus_noise, with_spectrum

SHAPES = [(40, 40), (90, 30), (30, 90), (1, 8), (8, 1), (16, 3 * 4 * 4)]
SPECTRA = {
    "falling": 0.7 ** torch.arange(12),
    "repeated": torch.tensor([2.0, 2.0, 2.0, 1.0, 1.0]),
    "one": torch.ones(1),
    "zero": torch.zeros(1),
    "small": torch.tensor([1.0, 0.5, 1e-3]),
    "too small for a Gram matrix": torch.tensor([1.0, 0.5, 1e-5]),
}


def stack(shape: tuple[int, int]) -> Tensor:
    """Put matrices of every kind into one stack: full rank, low rank, zero, ill-conditioned."""
    made = [with_spectrum(spectrum[: min(shape)], shape, seed) for seed, spectrum in enumerate(SPECTRA.values())]
    return torch.stack([low_rank_plus_noise(shape), *made, torch.zeros(shape)])


def decomposed(matrices: Tensor, rank: int | None = None) -> list[tuple[Tensor, ...]]:
    """Decompose matrices together on a pretended GPU."""
    with pretended():
        return [tuple(part.cpu() for part in factors) for factors in factorise_all(matrices.to("cuda"), rank)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("rank", [None, 1, 7])
def test_matrices_together_have_the_factors_of_each_alone(shape: tuple[int, int], rank: int | None) -> None:
    matrices = stack(shape)
    for matrix, parts in zip(matrices, decomposed(matrices, rank), strict=True):
        found, alone = Factors(*parts), factorise(matrix, rank)
        assert [(part.shape, part.dtype) for part in found] == [(part.shape, part.dtype) for part in alone]
        assert all(part.is_contiguous() for part in found)
        torch.testing.assert_close(found.s, alone.s, rtol=1e-6, atol=1e-6 * float(alone.s[0]))
        assert numerical_rank(found.s, shape) == numerical_rank(alone.s, shape)
        assert_orthonormal(found.u)
        assert_orthonormal(found.vh.mT)
        spectrum = torch.linalg.svdvals(matrix.double())
        least = float(spectrum[found.u.shape[1] :].norm())  # what no approximation of this rank can do without
        assert float((matrix - rebuilt(found)).double().norm()) <= least + 1e-6 * float(spectrum.norm())


def test_a_stack_in_another_layout_has_the_same_factors() -> None:
    matrices = stack((90, 30))
    pairs = zip(decomposed(matrices), decomposed(matrices.mT.contiguous().mT), strict=True)
    for found, other in pairs:
        torch.testing.assert_close(rebuilt(Factors(*found)), rebuilt(Factors(*other)), rtol=0, atol=1e-6)


def test_on_the_cpu_each_matrix_is_decomposed_by_itself() -> None:
    matrices = stack((30, 12))
    for found, alone in zip(factorise_all(matrices, 5), (factorise(matrix, 5) for matrix in matrices), strict=True):
        assert all(map(torch.equal, found, alone))


def factors_of(matrices: Tensor) -> Iterator[Tensor]:
    return (u * s @ vh for u, s, vh in compact_each(matrices, 5))


def products_of(matrices: Tensor) -> Iterator[Tensor]:
    return (left @ right for left, right in truncations(matrices, 5))


def parts_outside(matrices: Tensor) -> Iterator[Tensor]:
    common = compact(matrices.sum(0), 4).u
    layer = LayerDeltas("w", "matrix", tuple(map(str, range(len(matrices)))), matrices)
    return (u * s @ vh for u, s, vh in specifics(layer, common, 3))


@pytest.mark.parametrize("decompose", [factors_of, products_of, parts_outside])
@pytest.mark.parametrize("shape", [(40, 20), (20, 40), (6, 5)])
@pytest.mark.parametrize("room", [1 << 34, 1 << 17])
def test_a_gpu_decomposes_as_many_at_once_as_fit(
    decompose: Callable[[Tensor], Iterator[Tensor]],
    shape: tuple[int, int],
    room: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    matrices, sizes = stack(shape), list[int]()
    alone, together = list(decompose(matrices)), lapack.each_eigh_top_
    monkeypatch.setattr(lapack, "each_eigh_top_", lambda grams, k: sizes.append(len(grams)) or together(grams, k))
    with pretended():
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device=None: (room, room))
        found = [each.cpu() for each in decompose(matrices.to("cuda"))]
    assert max(sizes) == (len(matrices) if room > 1 << 20 or min(shape) < 6 else 2)
    for one, other in zip(found, alone, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-6)


def test_nan_among_matrices_that_are_decomposed_together_is_refused() -> None:
    matrices = stack((8, 6))
    matrices[2, 1, 1] = torch.nan
    with pytest.raises(ValueError, match="holds NaN or infinity"):
        decomposed(matrices)
