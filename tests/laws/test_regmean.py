from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from merganser.inputs.layers import LayerDeltas, Side, Statistics
from tests.laws.layers import matrices, merged, vectors
from tests.laws.references import Array, Given, measured
from tests.laws.samples import assert_same, merged_vector, network
from tests.laws.spectra import drawn

CASES: list[dict[str, Any]] = [{"ratio": 1.0}, {"ratio": 0.0}]


def nearest(deltas: Array, grams: Array, ratio: float) -> Array:
    """Solve (M, N) for the sum of the deltas times their shrunk Gram matrices, with inputs on the columns."""
    shrunk = [ratio * gram + (1 - ratio) * np.diag(np.diag(gram)) for gram in grams]
    return np.linalg.solve(sum(shrunk), sum(d @ g for d, g in zip(deltas, shrunk, strict=True)).T).T


def reference(layers: Sequence[Given], *, ratio: float, scaling: float) -> list[Array]:
    """Solve matrices, on the side that their inputs are; average the others."""
    found = []
    for layer in layers:
        if layer.kind == "vector":
            found.append(scaling * layer.deltas.mean(0))
            continue
        turned = layer.statistics.side == "rows"
        deltas = layer.deltas.transpose(0, 2, 1) if turned else layer.deltas
        solved = scaling * nearest(deltas, measured(layer.statistics["gram"]), ratio)
        found.append(solved.T if turned else solved)
    return found


def layer_on(deltas: Tensor, grams: Tensor, side: Side = "columns") -> LayerDeltas:
    return replace(matrices(list(deltas)), statistics=Statistics({"gram": grams}, side))


def inputs(tasks: int, size: int, rows: int = 40, seed: int = 1) -> Tensor:
    """Draw the tasks' inputs (T, rows, size), different in scale and direction."""
    generator = torch.Generator().manual_seed(seed)
    turned = torch.randn(tasks, size, size, generator=generator, dtype=torch.float64)
    return torch.randn(tasks, rows, size, generator=generator, dtype=torch.float64) @ turned


def gram_of(rows: Tensor) -> Tensor:
    return rows.mT @ rows / rows.shape[-2]


def solved(deltas: Tensor, grams: Tensor, side: Side = "columns", **values: float) -> Tensor:
    (found,) = merged("regmean", layer_on(deltas, grams, side), **values)
    assert isinstance(found, Tensor)
    return found


@pytest.mark.parametrize("ratio", [0.0, 0.9, 1.0])
@pytest.mark.parametrize("tasks", [1, 2, 8])
def test_equal_inputs_give_the_average(tasks: int, ratio: float) -> None:
    deltas, gram = drawn(tasks, (5, 7)), gram_of(inputs(1, 7)).expand(tasks, 7, 7)
    assert_same(solved(deltas, gram, ratio=ratio), deltas.mean(0), 1e-10)


def test_without_shrinking_it_is_the_least_squares_solution() -> None:
    deltas, rows = drawn(3, (5, 7)), inputs(3, 7)
    outputs = rows @ deltas.mT
    best = torch.linalg.lstsq(rows.flatten(0, 1), outputs.flatten(0, 1)).solution.mT
    assert_same(solved(deltas, gram_of(rows), ratio=1.0), best, 1e-10)


def test_with_the_diagonal_alone_it_is_a_mean_of_columns_weighted_by_their_inputs_sizes() -> None:
    deltas, grams = drawn(3, (5, 7)), gram_of(inputs(3, 7))
    sizes = grams.diagonal(dim1=1, dim2=2).unsqueeze(1)
    assert_same(solved(deltas, grams, ratio=0.0), (deltas * sizes).sum(0) / sizes.sum(0), 1e-10)


@pytest.mark.parametrize("ratio", [0.0, 0.9, 1.0])
@pytest.mark.parametrize("rows", [0, 1, 3])
def test_one_task_with_too_few_inputs_keeps_its_own_map(rows: int, ratio: float) -> None:
    deltas = drawn(1, (5, 7))
    gram = gram_of(inputs(1, 7, rows)) if rows else torch.zeros(1, 7, 7, dtype=torch.float64)
    assert_same(solved(deltas, gram, ratio=ratio), deltas[0], 1e-8)


def test_a_dead_input_is_averaged() -> None:
    deltas, rows = drawn(3, (5, 7)), inputs(3, 7)
    rows[..., 2] = 0
    for ratio in (0.5, 1.0):
        found = solved(deltas, gram_of(rows), ratio=ratio)
        assert_same(found[:, 2], deltas.mean(0)[:, 2], 1e-8)
        others = [0, 1, 3, 4, 5, 6]
        alone = solved(deltas[:, :, others], gram_of(rows[..., others]), ratio=ratio)
        assert_same(found[:, others], alone, 1e-8)


def test_a_common_factor_of_the_inputs_changes_nothing() -> None:
    deltas, grams = drawn(3, (5, 7)), gram_of(inputs(3, 7))
    assert_same(solved(deltas, 1e-9 * grams), solved(deltas, grams), 1e-10)


def test_inputs_on_the_rows_are_those_of_the_transposes() -> None:
    deltas, grams = drawn(3, (7, 7)), gram_of(inputs(3, 7))
    assert_same(solved(deltas, grams, "rows"), solved(deltas.mT, grams).mT, 1e-12)
    assert (solved(deltas, grams, "rows") - solved(deltas, grams)).norm() > 1e-3


def test_what_has_no_inputs_is_the_scaled_mean() -> None:
    unseen = replace(matrices([torch.tensor([[4.0, 2.0]]), torch.tensor([[2.0, 0.0]])]), statistics=Statistics())
    bias = vectors([torch.tensor([4.0]), torch.tensor([2.0])])
    found = merged("regmean", unseen, bias, scaling=0.5)
    assert [each.tolist() for each in found if isinstance(each, Tensor)] == [[[1.5, 0.5]], [1.5]]


def test_the_scaling_scales_what_is_merged() -> None:
    layers = network(2, dtype=torch.float64)
    assert_same(merged_vector("regmean", layers, scaling=0.3), 0.3 * merged_vector("regmean", layers), 1e-12)


def test_regmean_by_hand() -> None:
    deltas = torch.tensor([[[4.0, 0.0]], [[0.0, 2.0]]], dtype=torch.float64)
    grams = torch.tensor([[[3.0, 0.0], [0.0, 1.0]], [[1.0, 0.0], [0.0, 1.0]]], dtype=torch.float64)
    assert_same(solved(deltas, grams), torch.tensor([[3.0, 1.0]], dtype=torch.float64), 1e-12)
