from dataclasses import replace
from math import prod

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from merganser.errors import InputError
from merganser.layers import Factors
from merganser.overlays.parts import Parts, tensors_of
from merganser.overlays.thresholded import Thresholded, ThresholdedFactors, pack, threshold, threshold_factors, unpack
from tests.laws.layers import merged, vectors
from tests.laws.spectra import (
    Array,
    assert_close,
    both_dtypes,
    decomposed,
    drawn,
    every_number,
    every_shape,
    numpy_of,
    svd,
)

tensors = st.lists(st.floats(-100, 100, width=32), min_size=1, max_size=40).map(torch.tensor)
everywhere = settings(max_examples=200, deadline=None, derandomize=True, database=None)


def grouped(values: Array) -> Array:
    """Replace each element by its group's signed root mean square (equations 10 to 13, the signs put right)."""
    out = np.zeros_like(values)
    positive, negative = values > 0, values < 0
    large = positive & (values > np.median(values[positive])) if positive.any() else positive
    small = negative & (values > np.median(values[negative])) if negative.any() else negative
    for group, sign in ((large, 1), (~negative & ~large, 1), (small, -1), (negative & ~small, -1)):
        if group.any():
            out[group] = sign * np.sqrt(np.mean(values[group] ** 2))
    return out


def reconstructed(values: Tensor) -> Tensor:
    return threshold(values).delta(tuple(values.shape))


@every_shape
@every_number
@both_dtypes
def test_dts_t_equals_the_printed_formula(shape: tuple[int, int], tasks: int, dtype: torch.dtype) -> None:
    deltas = drawn(tasks, shape, dtype)
    k = int(0.3 * min(shape))
    (parts,) = merged("dts_t", decomposed(deltas))
    assert isinstance(parts, Parts)
    assert parts.unified is None
    for task, delta in zip(parts.tasks, numpy_of(deltas), strict=True):
        u, s, vh = (part[:k] for part in (svd(delta)[0].T, *svd(delta)[1:]))
        signs = np.sign(np.take_along_axis(u, np.abs(u).argmax(1)[:, None], 1))  # the groups depend on them
        reference = grouped(signs * u).T * s @ grouped(signs * vh) if k else grouped(delta)
        assert_close(parts.tasks[task].delta(shape), reference)


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


def test_zeros_join_the_small_positive_group() -> None:
    found = reconstructed(torch.tensor([0.0, 3.0, 4.0, -1.0, 0.0]))
    assert found.tolist() == pytest.approx([3.0 / 3**0.5, 3.0 / 3**0.5, 4.0, -1.0, 3.0 / 3**0.5])


@pytest.mark.parametrize("count", range(1, 10))
def test_codes_take_two_bits_each(count: int) -> None:
    codes = (torch.arange(count) * 7 % 4).to(torch.uint8)
    packed = pack(codes)
    assert packed.dtype == torch.uint8
    assert len(packed) == (count + 3) // 4
    assert torch.equal(unpack(packed, count), codes)


def test_an_unchanged_tensor_stores_nothing() -> None:
    deltas = torch.cat([drawn(1, (12, 9), torch.float32), torch.zeros(1, 12, 9)])
    for layer in (decomposed(deltas), decomposed(deltas[:, :2]), vectors([torch.ones(3), torch.zeros(3)])):
        (parts,) = merged("dts_t", layer)
        assert isinstance(parts, Parts)
        assert list(parts.tasks) == ["task0"]


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


def test_a_low_rank_delta_is_thresholded_on_its_rank() -> None:
    (parts,) = merged("dts_t", decomposed(drawn(1, (40, 30), torch.float32, rank=2)))
    assert isinstance(parts, Parts)
    (part,) = parts.tasks.values()
    assert isinstance(part, ThresholdedFactors)
    assert len(part.s) == 2


def test_more_vectors_than_are_stored_are_refused() -> None:
    with pytest.raises(InputError, match=r"decompose.rank_fraction is too small"):
        merged("dts_t", decomposed(drawn(2, (20, 20)), 4))


VIT_B_32 = (  # the image tower's matrices, rows and columns, and how many of each; its other entries are vectors
    *((shape, 12) for shape in ((2304, 768), (768, 768), (3072, 768), (768, 3072))),
    ((768, 3 * 32 * 32), 1),
)
VIT_B_32_VECTORS = (768, 50 * 768, 768 * 512, *[768] * 4, *[2304, *[768] * 6, 3072] * 12)


def stored(part: Thresholded | ThresholdedFactors) -> int:
    return sum(tensor.nbytes for tensor in tensors_of(part).values())


@pytest.mark.parametrize(("rank_fraction", "expected"), [(0.3, 2.5), (0.117, 1.0)])
def test_a_vit_b_32_takes_two_and_a_half_per_cent(rank_fraction: float, expected: float) -> None:
    total = sum(prod(shape) * count for shape, count in VIT_B_32) + sum(VIT_B_32_VECTORS)
    found = sum(stored(threshold(torch.ones(n))) for n in VIT_B_32_VECTORS)
    for (rows, columns), count in VIT_B_32:
        k = int(rank_fraction * min(rows, columns))
        factors = Factors(torch.ones(rows, k), torch.ones(k), torch.ones(k, columns))
        found += count * stored(threshold_factors(factors))
    assert 100 * found / (4 * total) <= 3.68  # the paper's, which counts three bits
    assert 100 * found / (4 * total) == pytest.approx(expected, abs=0.1)
