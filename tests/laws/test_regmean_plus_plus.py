"""RegMean++'s merge of a block's maps, given its inputs; tests/learning/test_block_merging.py holds what these are."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from merganser import registry
from merganser.inputs.layers import GivenLayers, LayerDeltas, Learned, Side, Statistics
from merganser.methods.regmean_plus_plus import Settings, merged_map
from tests.laws.layers import Layers, matrices
from tests.laws.references import Array, Given, measured
from tests.laws.samples import assert_same
from tests.laws.spectra import drawn
from tests.laws.test_regmean import gram_of, inputs, layer_on, solved


def reference(layers: Sequence[Given]) -> list[Array]:
    """Solve each matrix for its inputs, on the side that they are, with 0.95 of their Gram matrices; average others."""
    found = []
    for layer in layers:
        if layer.kind == "vector":
            found.append(layer.deltas.mean(0))
            continue
        on_rows = layer.statistics.side == "rows"
        grams = measured(layer.statistics["gram"])
        grams = 0.95 * grams + 0.05 * np.stack([np.diag(np.diag(gram)) for gram in grams])
        maps = layer.deltas if on_rows else layer.deltas.transpose(0, 2, 1)  # as x W
        merged = np.linalg.inv(grams.sum(0)) @ (grams @ maps).sum(0)
        found.append(merged if on_rows else merged.T)
    return found


def plus_plus(deltas: Tensor, grams: Tensor, ratio: float, side: Side = "columns") -> Tensor:
    return merged_map(layer_on(deltas, grams, side), Settings(ratio=ratio))


@pytest.mark.parametrize("ratio", [0.0, 0.9, 1.0])
@pytest.mark.parametrize("side", ["columns", "rows"])
def test_given_the_same_inputs_a_map_is_merged_as_by_regmean(side: Side, ratio: float) -> None:
    deltas, grams = drawn(3, (7, 7)), gram_of(inputs(3, 7))
    assert_same(plus_plus(deltas, grams, ratio, side), solved(deltas, grams, side, ratio=ratio), 1e-12)


@pytest.mark.parametrize("ratio", [0.0, 0.9, 1.0])
@pytest.mark.parametrize("tasks", [1, 2, 8])
def test_equal_models_give_that_model_whatever_their_inputs(tasks: int, ratio: float) -> None:
    deltas, grams = drawn(1, (5, 7)).expand(tasks, 5, 7), gram_of(inputs(tasks, 7))
    assert_same(plus_plus(deltas, grams, ratio), deltas[0], 1e-10)


def test_what_was_not_measured_is_averaged() -> None:
    unseen = replace(matrices([torch.tensor([[4.0, 2.0]]), torch.tensor([[2.0, 0.0]])]), statistics=Statistics())
    assert merge_with({}, unseen).tolist() == [[3.0, 1.0]]
    assert merge_with({"w": torch.tensor([[5.0, 6.0]])}, unseen).tolist() == [[5.0, 6.0]]


def merge_with(values: dict[str, Tensor], layer: LayerDeltas) -> Tensor:
    learned = Learned("regmean_plus_plus", {}, layer.tasks, (layer.name,), values)
    merged = registry.get("regmean_plus_plus").bind({}, GivenLayers(Layers([layer]), {"learned": learned}))(layer)
    assert isinstance(merged, Tensor)
    return merged


def test_regmean_plus_plus_by_hand() -> None:
    deltas = torch.tensor([[[4.0, 0.0]], [[0.0, 2.0]]], dtype=torch.float64)
    grams = torch.tensor([[[3.0, 0.0], [0.0, 1.0]], [[1.0, 0.0], [0.0, 1.0]]], dtype=torch.float64)
    assert_same(plus_plus(deltas, grams, 0.95), torch.tensor([[3.0, 1.0]], dtype=torch.float64), 1e-12)
