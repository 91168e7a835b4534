import weakref
from collections.abc import Iterator
from functools import partial
from math import floor
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from merganser.linalg import blocks, thresholds
from merganser.linalg.counts import count_of, share_of, tallied
from merganser.linalg.cuts import band_of, cut_at, cut_of, each_in_band, each_trimmed, kept
from merganser.linalg.thresholds import in_memory
from tests.gpu import pretended, pretended_gpu
from tests.support import steady

DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


def by_sorting(vector: Tensor, density: float) -> Tensor:
    """Mark the largest magnitudes the plain way: sort all; keep what equals the last that is kept, but no zeros."""
    count = floor(density * vector.numel() + 1e-9)
    if count == 0:
        return torch.zeros(vector.numel(), dtype=torch.bool)
    least = vector.abs().sort(descending=True).values[count - 1]
    return (vector.abs() >= least) & (vector != 0)


def by_streaming(pieces: list[Tensor], density: float) -> Tensor:
    """Mark them in pieces (T, ...) read one at a time, as whole vectors (T, n); check that trimming keeps the same."""
    with tallied() as tally:
        cut = cut_at(in_memory(*pieces), density)
    masks = [kept(piece, cut).flatten(1) for piece in pieces]
    for piece, mask in zip(pieces, masks, strict=True):
        assert torch.equal(torch.cat(list(each_trimmed(piece, cut)), dim=1), torch.where(mask, piece.flatten(1), 0))
    found = torch.cat(masks, dim=1)
    assert tally == [(int(found.sum()), found.numel())]
    return found


def largest(values: Tensor, count: int) -> list[int]:
    """List the places of the largest magnitudes of one vector."""
    cut = cut_of(in_memory(values.unsqueeze(0)), lambda _: count)
    return kept(values.unsqueeze(0), cut).flatten().nonzero().flatten().tolist()


@given(
    values=st.lists(st.floats(width=16, allow_nan=False), min_size=1, max_size=40),
    splits=st.lists(st.integers(0, 40), max_size=3),
    density=st.floats(0, 1),
    dtype=st.sampled_from(DTYPES),
    size=st.integers(1, 100),
    limit=st.sampled_from([0, 10, thresholds.LIMIT]),
    short=st.sampled_from([0, 10, thresholds.SHORT]),
)
@steady(60)
def test_the_streamed_cut_keeps_what_sorting_keeps(
    values: list[float], splits: list[int], density: float, dtype: torch.dtype, size: int, limit: int, short: int
) -> None:
    stack = torch.tensor([values, values[::-1]], dtype=torch.float64).to(dtype)
    pieces = list(stack.tensor_split(sorted(splits), dim=1))
    expected = torch.stack([by_sorting(row, density) for row in stack])
    assert torch.equal(by_streaming(pieces, density), expected)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "BLOCK", size)
        patch.setattr(thresholds, "LIMIT", limit)
        patch.setattr(thresholds, "SHORT", short)
        assert torch.equal(by_streaming(pieces, density), expected)


@pytest.mark.parametrize("dtype", DTYPES)
def test_all_that_are_equal_at_the_cut_are_kept_but_no_zeros(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    stack = torch.randint(-3, 4, (3, 1000), generator=generator).to(dtype)
    equal = torch.stack([(stack.abs() == size).sum(1) for size in (3, 2, 1)]).cumsum(0)
    for density, sizes in ((0.0, 0), (0.001, 1), (0.2, 1), (0.4999, 2), (0.5, 2), (0.999, 3), (1.0, 3)):
        mask = by_streaming(list(stack.split(170, dim=1)), density)
        assert torch.equal(mask, torch.stack([by_sorting(row, density) for row in stack]))
        assert mask.sum(1).tolist() == (equal[sizes - 1].tolist() if sizes else [0, 0, 0])


def test_of_a_bfloat16_fine_tune_signs_and_copies_of_a_layer_are_kept_alike() -> None:
    generator = torch.Generator().manual_seed(0)
    base = (0.05 * torch.randn(1, 4000, generator=generator)).bfloat16()
    tuned = (base + 0.002 * torch.randn(1, 4000, generator=generator)).bfloat16()
    delta = tuned.float() - base.float()
    assert len(delta.abs().unique()) < 1000
    copies = [delta, -delta, delta.flip(1), delta]
    for density in (0.05, 0.2, 0.5):
        cut = cut_at(in_memory(*copies), density)
        shares = [float(kept(copy, cut).double().mean()) for copy in copies]
        assert len(set(shares)) == 1
        assert density <= shares[0] < density + 0.05
        assert torch.equal(kept(delta, cut), kept(-delta, cut))
        assert cut == cut_at(in_memory(*copies[::-1]), density)


@given(
    values=st.lists(st.sampled_from([-2.0, -1.0, -0.0, 0.0, 0.5, 1.0, 3.0]), min_size=1, max_size=30),
    above=st.integers(0, 30),
    wanted=st.integers(0, 30),
)
@steady(60)
def test_a_band_keeps_what_equals_one_of_its_entries(values: list[float], above: int, wanted: int) -> None:
    stack, n = torch.tensor([values, values[::-1]]), len(values)
    above = min(above, n)
    wanted = min(wanted, n - above)
    within = sorted(map(abs, values), reverse=True)[above : above + wanted]
    expected = torch.tensor([[value if abs(value) in within else 0.0 for value in row] for row in stack.tolist()])
    with tallied() as tally:
        found = torch.cat(list(each_in_band(stack, band_of(in_memory(stack), [above] * 2, [wanted] * 2))), dim=1)
    assert torch.equal(found, expected)
    assert share_of(tally) == float(expected.count_nonzero()) / (2 * n)


def test_the_cut_tells_neighbouring_floats_apart() -> None:
    for dtype in (torch.float32, torch.float64):
        one = torch.tensor(1.0, dtype=dtype)
        above = torch.nextafter(one, 2 * one)
        below = torch.nextafter(one, 0 * one)
        values = torch.stack([below, -one, above, one, below])
        assert largest(values, 1) == [2]
        assert largest(values, 2) == largest(values, 3) == [1, 2, 3]
        assert largest(values, 4) == [0, 1, 2, 3, 4]


def test_subnormal_and_infinite_magnitudes_have_their_place() -> None:
    values = torch.tensor([0.0, 1e-45, -3e38, float("-inf"), 1e-40, -0.0])
    assert [largest(values, count) for count in range(5)] == [[], [3], [2, 3], [2, 3, 4], [1, 2, 3, 4]]


def test_each_task_has_its_own_cut() -> None:
    stack = torch.tensor([[1.0, 2.0, 3.0, 4.0], [400.0, 300.0, 200.0, 100.0]])
    assert by_streaming([stack], 0.5).tolist() == [[False, False, True, True], [True, True, False, False]]


def test_the_stream_is_never_held_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thresholds, "SHORT", 100)
    pieces: list[weakref.ref[Tensor]] = []

    def read() -> Iterator[Tensor]:
        for seed in range(20):
            assert sum(piece() is not None for piece in pieces) <= 1
            piece = torch.randn(2, 50, generator=torch.Generator().manual_seed(seed))
            pieces.append(weakref.ref(piece))
            yield piece
            del piece

    cut_at(lambda function: map(function, read()), 0.2)
    assert len(pieces) >= 40  # two readings at least


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("limit", [0, thresholds.LIMIT])
def test_the_cut_is_exact_in_a_large_vector_of_every_size_of_number(
    limit: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(thresholds, "LIMIT", limit)
    generator = torch.Generator().manual_seed(0)
    exponents = torch.rand(3, 300_000, generator=generator, dtype=torch.float64) * 80 - 60
    stack = (torch.randn(3, 300_000, generator=generator, dtype=torch.float64) * 2.0**exponents).to(dtype)
    stack[1] = torch.where(torch.rand(300_000, generator=generator) < 0.9, 0.0, stack[1])  # a task that changed little
    stack[2] = stack[2].sign() * 0.25  # a task whose changes are all as large
    for density in (0.05, 0.2, 0.95):
        expected = torch.stack([by_sorting(row, density) for row in stack])
        assert torch.equal(by_streaming(list(stack.split(90_000, dim=1)), density), expected)


def test_what_is_cut_is_what_is_made_of_each_block() -> None:
    stack = torch.randn(2, 50, generator=torch.Generator().manual_seed(0))
    pieces = list(stack.split(20, dim=1))
    cut = cut_of(in_memory(*pieces), partial(count_of, 0.3), torch.reciprocal)
    masks = [kept(piece, cut, torch.reciprocal) for piece in pieces]
    assert torch.equal(torch.cat(masks, dim=1), torch.stack([by_sorting(1 / row, 0.3) for row in stack]))


def test_parameters_of_one_number_are_cut_too() -> None:
    pieces = [torch.tensor([1.0, 2.0]), torch.tensor([3.0, 1.0])]
    cut = cut_of(in_memory(*pieces), lambda _: 1)
    assert [kept(piece, cut).tolist() for piece in pieces] == [[False, True], [True, False]]


@pytest.mark.parametrize(("dtype", "more"), [(torch.bfloat16, 0), (torch.float32, 1), (torch.float64, 1)])
def test_two_passes_find_the_cut_and_another_where_many_entries_are_nearly_equal(
    dtype: torch.dtype, more: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(thresholds, "LIMIT", 1000)
    spread = torch.randn(2, 20_000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    near = 1 + 1e-4 * spread  # all in a few bins
    for stack, passes in ((spread.to(dtype), 2), (near.to(dtype), 2 + more)):
        reads = []

        def read(function: Any, stack: Tensor = stack, reads: list[int] = reads) -> Iterator[Any]:
            reads.append(1)
            return map(function, stack.split(7_000, dim=1))

        mask = kept(stack, cut_at(read, 0.3))
        assert torch.equal(mask, torch.stack([by_sorting(row, 0.3) for row in stack]))
        assert len(reads) == passes


@pretended_gpu
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_gpu_counts_as_the_cpu_does_and_keeps_its_counts_until_the_end(dtype: torch.dtype) -> None:
    stack = torch.randn(2, 3, 9000, generator=torch.Generator().manual_seed(0)).to(dtype)
    ranks = [1, 7, 2600, 27_000, 0, 13_500]  # three of each task
    expected = thresholds.thresholds(in_memory(stack, stack), lambda n: ranks)
    with pretended():
        there, copied = stack.to("cuda"), list[Tensor]()
        assert thresholds.thresholds(in_memory(there, there), lambda n: ranks) == expected
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Tensor, "cpu", lambda tensor: copied.append(tensor))
            counted = thresholds._counted(there, None, None)
    assert isinstance(counted, thresholds.Histogram)
    assert counted.counts.is_cuda
    assert not copied
