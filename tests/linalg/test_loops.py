"""The compiled loops against torch's own operations: the same bits."""

from itertools import combinations_with_replacement

import numpy as np
import pytest
import torch
from torch import Tensor

from merganser.checkpoints.tensors import Rows
from merganser.inputs.layers import LayerDeltas
from merganser.linalg import loops
from merganser.linalg.blocks import IN_ORDER, LARGE, is_summed_in_order
from merganser.linalg.uniform import Uniform
from merganser.operators.angles import TILE, combined, tiles, vector_inner_products
from merganser.operators.ties import weighted_disjoint_mean

DTYPES = (torch.float32, torch.float64)
SHAPES = ((1, 100_003), (7, 1000), (64, 3), (40, 5632))


def drawn(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=dtype)


def summed(values: Tensor, weights: Tensor, start: Tensor | None, beyond: Tensor) -> Tensor:
    found = (values * weights.unsqueeze(2)).sum(0)
    return (found if start is None else found + start * beyond.unsqueeze(1)).to(values.dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("tasks", range(1, IN_ORDER + 1))
def test_a_weighted_sum_has_torchs_bits(tasks: int, shape: tuple[int, int], dtype: torch.dtype) -> None:
    values, start = drawn(tasks, *shape, dtype=dtype), drawn(*shape, dtype=dtype)
    weights, beyond = drawn(tasks, shape[0]).double(), drawn(shape[0]).double()
    found = torch.empty(shape, dtype=dtype)
    for beside in (None, start):
        given = (values, weights, values.new_empty(0, shape[1]) if beside is None else beside, beyond, found)
        loops.weighted_sum(*(each.numpy() for each in given))
        assert torch.equal(found, summed(values, weights, beside, beyond))


def test_sums_of_large_tensors_are_those_of_torch() -> None:
    values, start = drawn(3, 1, LARGE), drawn(1, LARGE)
    shares = torch.tensor([[0.5], [0.7], [-0.1]]).double()
    assert is_summed_in_order(values, shares)
    assert torch.equal(combined(values, shares), summed(values, shares, None, torch.zeros(1)))
    assert torch.equal(combined(values, shares, start), summed(values, shares, start, shares.sum(0) - 1))
    found = weighted_disjoint_mean(values[:, 0], None, shares.flatten().tolist(), divided=False)
    assert torch.equal(found, summed(values, shares, None, torch.zeros(1))[0])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, LARGE), (40, 5632), (3, 2 * TILE), (2048, 64)])
@pytest.mark.parametrize("tasks", [1, 2, 5])
@pytest.mark.parametrize("with_start", [False, True])
def test_inner_products_have_torchs_bits(
    tasks: int, shape: tuple[int, int], dtype: torch.dtype, with_start: bool
) -> None:
    values, start = drawn(tasks, *shape, dtype=dtype), drawn(*shape, dtype=dtype) if with_start else None
    upper = torch.ones(tasks, tasks).triu().bool()
    expected = torch.zeros(tasks, tasks, shape[0], dtype=torch.float64)
    for rows, columns in tiles(values):
        tile = values[:, rows, columns].double()
        tile = tile if start is None else tile + start[rows, columns]
        for i, j in combinations_with_replacement(range(tasks), 2):
            expected[i, j, rows] += (tile[i] * tile[j]).sum(-1)
    assert torch.equal(vector_inner_products(values, start)[upper], expected[upper])


def test_products_begin_anywhere() -> None:
    values, found = drawn(3, 2000), torch.empty(6, 1000, dtype=torch.float64)
    loops.products(values.numpy(), 700, np.empty(0, np.float32), found.numpy())
    wide = values[:, 700:1700].double()
    pairs = combinations_with_replacement(range(3), 2)
    assert torch.equal(found, torch.stack([wide[i] * wide[j] for i, j in pairs]))


def test_differences_of_bfloat16_are_exact_and_what_is_not_finite_is_told() -> None:
    one, other = (drawn(100_001 + each).to(torch.bfloat16)[:100_001] for each in (0, 1))
    found = torch.empty(len(one))

    def differences(one: Tensor, other: Tensor) -> bool:
        bits = (each.view(torch.uint16).numpy() for each in (one, other))
        return bool(loops.bfloat16_differences(*bits, found.numpy()))

    assert differences(one, other)
    assert torch.equal(found, one.float() - other.float())
    for value in (float("nan"), float("inf"), -float("inf")):
        bad = one.clone()
        bad[-1] = value
        assert not differences(bad, other)
        assert not differences(other, bad)


@pytest.mark.parametrize("seed", [0, 1, 2**32 - 1, 2**32 + 5, 2**63 - 1])
def test_random_numbers_are_those_of_torch_in_whatever_pieces(seed: int) -> None:
    generator, uniform = torch.Generator().manual_seed(seed), Uniform(seed)
    found = torch.empty(5000)
    for start, stop in ((0, 1), (1, 623), (623, 624), (624, 625), (625, 5000)):
        uniform.draw(found[start:stop])
    assert torch.equal(found, torch.rand(5000, generator=generator))
    state = uniform.state()
    further = torch.rand(700, generator=generator)
    for _ in range(2):
        uniform.draw(found[:700])
        assert torch.equal(found[:700], further)
        uniform.restore(state)


def test_pieces_of_a_layer_draw_what_the_layer_does() -> None:
    from merganser.operators.drop import drop_layer

    layer = LayerDeltas("w", "matrix", ("a", "b"), drawn(2, 9, 50), seed=3)
    pieces = [Rows("w", start, start + 3, 9) for start in (3, 0, 6)]
    for rows in pieces:
        piece = LayerDeltas(str(rows), "matrix", layer.tasks, layer.deltas[:, rows.start : rows.stop], 3, rows=rows)
        assert torch.equal(drop_layer(piece, 0.5), drop_layer(layer, 0.5)[:, rows.start : rows.stop])
