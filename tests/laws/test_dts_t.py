from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from merganser.errors import InputError
from merganser.linalg.decompositions import Factors
from merganser.overlays.parts import Parts, pack_bits, tensors_of, unpack_bits
from merganser.overlays.thresholded import (
    WIDTH,
    Thresholded,
    ThresholdedFactors,
    ThresholdedVectors,
    threshold,
    threshold_factors,
)
from tests.laws.dts import grouped
from tests.laws.dts import reference as reference
from tests.laws.layers import merged, vectors
from tests.laws.spectra import (
    decomposed,
    drawn,
    numpy_of,
)
from tests.support import steady

tensors = st.lists(st.floats(-100, 100, width=32), min_size=1, max_size=40).map(torch.tensor)
everywhere = steady(80)


def reconstructed(values: Tensor) -> Tensor:
    return threshold(values).delta(tuple(values.shape))


def test_the_toy_vector_is_reproduced() -> None:
    assert torch.equal(reconstructed(torch.tensor([1.0, 1, 5, -2, -9])), torch.tensor([1.0, 1, 5, -2, -9]))


@everywhere
@given(tensors)
def test_thresholding_twice_equals_once(values: Tensor) -> None:
    once = reconstructed(values)
    torch.testing.assert_close(reconstructed(once), once, rtol=1e-6, atol=0)


@everywhere
@given(tensors)
def test_norm_and_signs_are_kept(values: Tensor) -> None:
    found = reconstructed(values)
    assert float(found.double().norm()) == pytest.approx(float(values.double().norm()), rel=1e-6)
    assert torch.equal(found < 0, values < 0)
    assert torch.equal((found > 0)[values > 0], torch.ones(int((values > 0).sum()), dtype=torch.bool))


@everywhere
@given(tensors)
def test_a_thresholded_tensor_equals_the_formula_with_ties_and_zeros(values: Tensor) -> None:
    expected = grouped(numpy_of(values))
    np.testing.assert_allclose(reconstructed(values).double().numpy(), expected, rtol=1e-6, atol=1e-30)


def test_by_signs_alone_there_are_two_scales_and_without_scales_signs_are_left() -> None:
    values = torch.tensor([3.0, 4.0, -1.0, -7.0])
    by_sign = threshold(values, "signs").delta((4,))
    assert by_sign.tolist() == pytest.approx([12.5**0.5, 12.5**0.5, -5.0, -5.0])
    assert threshold(values, scaled=False).delta((4,)).tolist() == [1, 1, -1, -1]


def test_with_groups_of_each_vector_a_delta_is_the_sum_of_its_triples_thresholded_alone() -> None:
    ((u, s, vh),) = decomposed(drawn(1, (12, 9), torch.float32), 3).factors
    factors = Factors(u, s[:3], vh)
    part = threshold_factors(factors, groups="vector")
    assert isinstance(part, ThresholdedVectors)
    assert part.u_scales.shape == part.v_scales.shape == (3, 4)
    triples = (Factors(factors.u[:, k : k + 1], factors.s[k : k + 1], factors.vh[k : k + 1]) for k in range(3))
    each = torch.stack([threshold_factors(triple).delta((12, 9)) for triple in triples])
    torch.testing.assert_close(part.delta((12, 9)), each.sum(0))


def test_zeros_join_the_small_positive_group() -> None:
    found = reconstructed(torch.tensor([0.0, 3.0, 4.0, -1.0, 0.0]))
    assert found.tolist() == pytest.approx([3.0 / 3**0.5, 3.0 / 3**0.5, 4.0, -1.0, 3.0 / 3**0.5])


@pytest.mark.parametrize("count", range(1, 10))
def test_codes_take_two_bits_each(count: int) -> None:
    codes = (torch.arange(count) * 7 % 4).to(torch.uint8)
    packed = pack_bits(codes, WIDTH)
    assert packed.dtype == torch.uint8
    assert len(packed) == (count + 3) // 4
    assert torch.equal(unpack_bits(packed, count, WIDTH), codes)


def test_an_unchanged_tensor_stores_nothing() -> None:
    deltas = torch.cat([drawn(1, (12, 9), torch.float32), torch.zeros(1, 12, 9)])
    for layer in (decomposed(deltas), decomposed(deltas[:, :2]), vectors([torch.ones(3), torch.zeros(3)])):
        (parts,) = merged("dts_t", layer)
        assert isinstance(parts, Parts)
        assert (parts.unified, list(parts.tasks)) == (None, ["task0"])


def test_the_signs_of_singular_vectors_do_not_matter() -> None:
    layer = decomposed(drawn(1, (12, 10), torch.float32))
    ((u, s, vh),) = layer.factors
    flips = torch.tensor([1.0, -1.0] * 5)
    flipped = replace(layer, factors=(Factors(u * flips, s, vh * flips.unsqueeze(1)),))
    (first,), (second,) = (merged("dts_t", x) for x in (layer, flipped))
    assert isinstance(first, Parts)
    assert isinstance(second, Parts)
    pairs = zip(*(tensors_of(parts.tasks["task0"]).values() for parts in (first, second)), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


def test_vectors_are_thresholded_directly() -> None:
    (parts,) = merged("dts_t", vectors([torch.tensor([1.0, 1, 5, -2, -9])]))
    assert isinstance(parts, Parts)
    assert isinstance(parts.tasks["task0"], Thresholded)
    assert parts.tasks["task0"].delta((5,)).tolist() == [1, 1, 5, -2, -9]


@pytest.mark.parametrize("stored", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("thresholds", ["medians", "signs"])
def test_a_matrix_of_zeros_and_equal_entries_is_thresholded_directly_from_its_factors(
    stored: torch.dtype, thresholds: str
) -> None:
    deltas = (drawn(1, (60, 40), torch.float32) * 32).round() / 32  # most entries 0, as in a bfloat16 fine-tune
    layer = decomposed(deltas)
    factors = tuple(Factors(f.u.to(stored).float(), f.s, f.vh.to(stored).float()) for f in layer.factors)
    (found,) = merged("dts_t", replace(layer, factors=factors, stored=stored), decompose=False, thresholds=thresholds)
    (wanted,) = merged("dts_t", vectors([deltas.flatten()]), thresholds=thresholds)
    assert isinstance(found, Parts)
    assert isinstance(wanted, Parts)
    pair = [parts.tasks["task0"].delta((2400,)) for parts in (found, wanted)]
    torch.testing.assert_close(*pair, rtol=2e-2, atol=0)


def test_a_low_rank_delta_is_thresholded_on_its_rank() -> None:
    (parts,) = merged("dts_t", decomposed(drawn(1, (40, 30), torch.float32, rank=2)))
    assert isinstance(parts, Parts)
    (part,) = parts.tasks.values()
    assert isinstance(part, ThresholdedFactors)
    assert len(part.s) == 2


def test_more_vectors_than_are_stored_are_refused() -> None:
    with pytest.raises(InputError, match=r"decompose.rank_fraction is too small"):
        merged("dts_t", decomposed(drawn(2, (20, 20)), 4))
