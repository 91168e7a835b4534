import weakref
from collections.abc import Iterator
from functools import partial
from math import floor

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from merganser.linalg import blocks, thresholds
from merganser.linalg.counts import count_of
from merganser.linalg.select import Cut, after, cut_at, cuts, each_trimmed, kept
from merganser.linalg.thresholds import InMemory

DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


def by_sorting(vector: Tensor, density: float) -> Tensor:
    """Mark the largest magnitudes the plain way: sort all, the first of equal ones first."""
    order = vector.abs().argsort(descending=True, stable=True)
    mask = torch.zeros(vector.numel(), dtype=torch.bool)
    mask[order[: floor(density * vector.numel() + 1e-9)]] = True
    return mask


def by_streaming(pieces: list[Tensor], density: float) -> Tensor:
    """Mark the largest magnitudes of pieces (T, ...) read one at a time, as whole vectors (T, n)."""
    cut = cut_at(lambda: pieces, density)
    masks = []
    for piece in pieces:
        masks.append(kept(piece, cut).flatten(1))
        cut = after(piece, cut)
    return torch.cat(masks, dim=1)


def largest(values: Tensor, count: int) -> list[int]:
    """List the places of the largest magnitudes of one vector."""
    (cut,) = cuts(InMemory(lambda: [values.unsqueeze(0)]), lambda _: count)
    return kept(values.unsqueeze(0), cut).flatten().nonzero().flatten().tolist()


def by_cuts(pieces: list[Tensor], density: float) -> Tensor:
    """Mark them with the cuts as they apply to each piece; check that trimming gives the same entries."""
    found = cuts(InMemory(lambda: pieces), partial(count_of, density))
    masks = [kept(piece, cut).flatten(1) for piece, cut in zip(pieces, found, strict=True)]
    for piece, cut, mask in zip(pieces, found, masks, strict=True):
        assert torch.equal(torch.cat(list(each_trimmed(piece, cut)), dim=1), torch.where(mask, piece.flatten(1), 0))
    return torch.cat(masks, dim=1)


@given(
    values=st.lists(st.floats(width=16, allow_nan=False), min_size=1, max_size=40),
    splits=st.lists(st.integers(0, 40), max_size=3),
    density=st.floats(0, 1),
    dtype=st.sampled_from(DTYPES),
    size=st.integers(1, 100),
    limit=st.sampled_from([0, 10, thresholds.LIMIT]),
)
@settings(deadline=None, max_examples=200)
def test_the_streamed_cut_keeps_what_sorting_keeps(
    values: list[float], splits: list[int], density: float, dtype: torch.dtype, size: int, limit: int
) -> None:
    stack = torch.tensor([values, values[::-1]], dtype=torch.float64).to(dtype)
    pieces = list(stack.tensor_split(sorted(splits), dim=1))
    expected = torch.stack([by_sorting(row, density) for row in stack])
    assert torch.equal(by_streaming(pieces, density), expected)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "BLOCK", size)
        patch.setattr(thresholds, "LIMIT", limit)
        assert torch.equal(by_cuts(pieces, density), expected)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_cut_is_exact_among_many_ties(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    stack = torch.randint(-3, 4, (3, 1000), generator=generator).to(dtype)
    for density in (0.0, 0.001, 0.2, 0.4999, 0.5, 0.999, 1.0):
        mask = by_streaming(list(stack.split(170, dim=1)), density)
        assert torch.equal(mask, by_cuts(list(stack.split(170, dim=1)), density))
        assert torch.equal(mask, torch.stack([by_sorting(row, density) for row in stack]))
        assert mask.sum(1).tolist() == [floor(density * 1000 + 1e-9)] * 3


def test_the_cut_tells_neighbouring_floats_apart() -> None:
    for dtype in (torch.float32, torch.float64):
        one = torch.tensor(1.0, dtype=dtype)
        above = torch.nextafter(one, 2 * one)
        below = torch.nextafter(one, 0 * one)
        values = torch.stack([below, -one, above, one, below])
        assert largest(values, 1) == [2]
        assert largest(values, 2) == [1, 2]
        assert largest(values, 3) == [1, 2, 3]
        assert largest(values, 4) == [0, 1, 2, 3]


def test_subnormal_and_infinite_magnitudes_have_their_place() -> None:
    values = torch.tensor([0.0, 1e-45, -3e38, float("-inf"), 1e-40, -0.0])
    assert [largest(values, count) for count in range(5)] == [[], [3], [2, 3], [2, 3, 4], [1, 2, 3, 4]]


def test_each_task_has_its_own_cut() -> None:
    stack = torch.tensor([[1.0, 2.0, 3.0, 4.0], [400.0, 300.0, 200.0, 100.0]])
    assert by_streaming([stack], 0.5).tolist() == [[False, False, True, True], [True, True, False, False]]


def test_the_stream_is_never_held_as_a_whole() -> None:
    pieces: list[weakref.ref[Tensor]] = []

    def read() -> Iterator[Tensor]:
        for seed in range(20):
            assert sum(piece() is not None for piece in pieces) <= 1
            piece = torch.randn(2, 50, generator=torch.Generator().manual_seed(seed))
            pieces.append(weakref.ref(piece))
            yield piece
            del piece

    cut_at(read, 0.2)
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
        assert torch.equal(by_cuts(list(stack.split(90_000, dim=1)), density), expected)


def test_what_is_cut_is_what_is_made_of_each_block() -> None:
    stack = torch.randn(2, 50, generator=torch.Generator().manual_seed(0))
    pieces = list(stack.split(20, dim=1))
    found = cuts(InMemory(lambda: pieces), partial(count_of, 0.3), torch.reciprocal)
    masks = [kept(piece, cut, torch.reciprocal) for piece, cut in zip(pieces, found, strict=True)]
    assert torch.equal(torch.cat(masks, dim=1), torch.stack([by_sorting(1 / row, 0.3) for row in stack]))


def test_only_the_piece_with_the_last_ties_has_any_left_to_tell_apart() -> None:
    pieces = [torch.tensor([[1.0, 1.0]]), torch.tensor([[2.0, 1.0, 1.0]]), torch.tensor([[1.0]])]
    one = int(torch.tensor(1.0).view(torch.int32))
    assert cuts(InMemory(lambda: pieces), lambda _: 4) == [Cut((one - 1,), (0,)), Cut((one,), (1,)), Cut((one,), (0,))]


def test_parameters_of_one_number_are_cut_too() -> None:
    pieces = [torch.tensor([1.0, 2.0]), torch.tensor([3.0, 1.0])]
    found = cuts(InMemory(lambda: pieces), lambda _: 1)
    assert [kept(piece, cut).tolist() for piece, cut in zip(pieces, found, strict=True)] == [
        [False, True],
        [True, False],
    ]


@pytest.mark.parametrize(("dtype", "more"), [(torch.bfloat16, 0), (torch.float32, 1), (torch.float64, 1)])
def test_two_passes_find_the_cut_and_another_where_many_entries_are_nearly_equal(
    dtype: torch.dtype, more: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(thresholds, "LIMIT", 1000)
    spread = torch.randn(2, 20_000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    near = 1 + 1e-4 * spread  # all in a few bins
    for stack, passes in ((spread.to(dtype), 2), (near.to(dtype), 2 + more)):
        reads = []

        def read(stack: Tensor = stack, reads: list[int] = reads) -> list[Tensor]:
            reads.append(1)
            return list(stack.split(7_000, dim=1))

        mask = kept(stack, cut_at(read, 0.3))
        assert torch.equal(mask, torch.stack([by_sorting(row, 0.3) for row in stack]))
        assert len(reads) == passes
