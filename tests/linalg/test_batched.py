import pytest
import torch
from torch import Tensor

from merganser.linalg import svd
from merganser.linalg.svd import factorise, factorise_all, factorise_together, numerical_rank, rebuilt
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


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("rank", [None, 1, 7])
def test_matrices_together_have_the_factors_of_each_alone(shape: tuple[int, int], rank: int | None) -> None:
    matrices = stack(shape)
    for matrix, found in zip(matrices, factorise_together(matrices, rank), strict=True):
        alone = factorise(matrix, rank)
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
    for found, other in zip(factorise_together(matrices), factorise_together(matrices.mT.contiguous().mT), strict=True):
        torch.testing.assert_close(rebuilt(found), rebuilt(other), rtol=0, atol=1e-6)


def test_on_the_cpu_each_matrix_is_decomposed_by_itself() -> None:
    matrices = stack((30, 12))
    for found, alone in zip(factorise_all(matrices, 5), (factorise(matrix, 5) for matrix in matrices), strict=True):
        assert all(map(torch.equal, found, alone))


@pytest.mark.parametrize("room", [1 << 34, 1 << 17])
def test_a_gpu_takes_as_many_at_once_as_fit(room: int, monkeypatch: pytest.MonkeyPatch) -> None:
    matrices, sizes = stack((40, 20)), []
    together = svd.factorise_together
    monkeypatch.setattr(svd, "factorise_together", lambda m, rank: sizes.append(len(m)) or together(m, rank))
    with pretended():
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device=None: (room, room))
        found = [[part.cpu() for part in factors] for factors in factorise_all(matrices.to("cuda"), 5)]
    assert len(sizes) == (1 if room > 1 << 20 else len(matrices) // 2)
    for factors, alone in zip(found, factorise_together(matrices, 5), strict=True):
        assert all(map(torch.equal, factors, alone))
