"""Trim, elect and average: by compiled loops and by torch the same, over a whole vector in few passes."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from merganser import registry
from merganser.inputs.layers import Layer, LayerDeltas, MappedLayers
from merganser.linalg import blocks, thresholds
from merganser.linalg.cuts import Cut, cut_at
from merganser.linalg.thresholds import in_memory
from merganser.operators.ties import (
    SCALINGS,
    balance_of,
    cut_and_winner,
    dense,
    disjoint_mean,
    elect_sign,
    trim,
    unscaled_merge,
    vector_cut,
    winning_sign,
)
from tests.laws.layers import Layers
from tests.laws.samples import layer_of, network
from tests.support import steady

DTYPES = [torch.float32, torch.float64]
FEW = st.sampled_from([-2.0, -1.0, -0.0, 0.0, 0.5, 1.0, 2.0])  # so that draws and equal magnitudes are many
NUMBERS = st.one_of(FEW, st.floats(-1e3, 1e3, width=32))


@contextmanager
def by_torch(block: int = blocks.BLOCK) -> Iterator[None]:
    """Let torch do what the compiled loops do, in blocks of so many values."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "LOOPED", ())
        patch.setattr(blocks, "BLOCK", block)
        yield


def stack_of(values: list[float], dtype: torch.dtype) -> Tensor:
    """Make three tasks' vectors."""
    return torch.tensor([values, values[::-1], [-value for value in values[1:] + values[:1]]], dtype=dtype)


def cut_of(stack: Tensor, density: float) -> Cut:
    """Find where each task's vector is cut."""
    return cut_at(in_memory(stack), density)


@given(
    values=st.lists(NUMBERS, min_size=1, max_size=60),
    dtype=st.sampled_from(DTYPES),
    density=st.floats(0.01, 1),
    draw=st.sampled_from([-1, 0, 1]),
    block=st.integers(1, 40),
)
@steady(60)
def test_the_loops_and_torch_elect_and_average_the_same(
    values: list[float], dtype: torch.dtype, density: float, draw: int, block: int
) -> None:
    stack = stack_of(values, dtype)
    trimmed = trim(stack, cut_of(stack, density))
    for deltas in (trimmed, stack):
        sign = elect_sign(deltas, draw)
        mean = disjoint_mean(deltas, sign)
        with by_torch(block):
            assert torch.equal(elect_sign(deltas, draw), sign)
            assert torch.equal(disjoint_mean(deltas, sign), mean)


@pytest.mark.parametrize("width", [511, 512, 513, 1300])
def test_the_loops_take_any_number_of_columns(width: int) -> None:
    stack = torch.randn(4, width, generator=torch.Generator().manual_seed(0))
    trimmed = trim(stack, cut_of(stack, 0.4))
    sign, written = elect_sign(trimmed, 1), dense(trimmed).double()
    agreeing = written * (written.sign() == written.sum(0).sign())
    expected = agreeing.sum(0) / (agreeing != 0).sum(0).clamp(min=1)
    torch.testing.assert_close(disjoint_mean(trimmed, sign), expected.float())
    assert int((expected != 0).sum()) > width // 2


@given(
    values=st.lists(NUMBERS, min_size=2, max_size=60),
    density=st.floats(0, 1),
    loops=st.booleans(),
    size=st.integers(1, 40),
)
@steady(60)
def test_the_sign_that_wins_is_that_of_the_trimmed_vectors(
    values: list[float], density: float, loops: bool, size: int
) -> None:
    left, right = stack_of([*values, 7.0], torch.float32).split(max(1, (len(values) + 1) // 2), dim=1)[:2]
    layers = Layers([layer_of("square", left.unsqueeze(1)), layer_of("bias", right)])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "LOOPED", DTYPES if loops else ())
        patch.setattr(blocks, "BLOCK", size)
        found, winner = cut_and_winner(layers, density)
    assert found == vector_cut(layers, density)
    balance = sum(balance_of(elect_sign(dense(trim(layer.deltas, found)))) for layer in layers)  # type: ignore[union-attr]
    assert winner == (-1 if balance < 0 else 1)


def test_the_sign_that_wins_is_positive_on_a_draw() -> None:
    layers = Layers([layer_of("bias", torch.tensor([[1.0, -1.0, 0.0]])), layer_of("b", torch.tensor([[-2.0, 0.5]]))])
    assert winning_sign(layers, lambda layer: layer.deltas) == 1
    assert winning_sign(layers, lambda layer: layer.deltas.clamp(max=0)) == -1


def test_a_merge_under_masks_is_unscaled_and_in_float64() -> None:
    layer = LayerDeltas("w", "vector", ("a", "b"), torch.tensor([[1.0, -2.0], [3.0, 1.0]]))
    merged = {name: unscaled_merge(Layers([layer]), name, 1.0)(layer) for name in SCALINGS}
    assert {name: delta.tolist() for name, delta in merged.items()} == {"task_arithmetic": [4, -1], "ties": [4, -2]}
    assert all(delta.dtype == torch.float64 for delta in merged.values())


@pytest.mark.parametrize("own", [{}, {"coefficients": {"task0": 2.0}}])
@pytest.mark.parametrize(("short", "times"), [(0, 3), (thresholds.SHORT, 2)])
def test_ties_reads_the_layers_three_times_before_it_merges_and_twice_where_they_are_short(
    short: int, times: int, own: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """For the leading bits of the cut, for the rest, and for the sign that wins; a short vector's cut takes one."""
    monkeypatch.setattr(thresholds, "SHORT", short)
    read: list[str] = []

    def note(layer: Layer) -> Layer:
        read.append(layer.name)
        return layer

    layers = MappedLayers(Layers(network(3)), note)
    ties = registry.get("ties")
    ties.bind(ties.validate("ties", own), layers)
    assert sorted(read) == sorted(times * layers.names)
