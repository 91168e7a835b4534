from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.laws.references import Array, Given, PerTask, flat, laid_out
from tests.laws.samples import assert_same, layer_of, merged_vector, network
from tests.laws.test_svc import inner_merge


def reference(
    layers: Sequence[Given], *, inner: str, density: PerTask, alpha: float | None, slope: float, scaling: float
) -> list[Array]:
    """Scale what the inner method merges by each layer's block."""
    merges = inner_merge(layers, inner, density)
    if alpha is None:
        size = np.abs(laid_out(merges)).sum()
        alpha = (np.abs(flat(layers).sum(0)).sum() / size if size else 1) / len(layers[0].tasks)
    blocks = [int(layer.name.split(".")[1]) if layer.name.startswith("blocks.") else 0 for layer in layers]
    last = max(blocks) or 1
    return [scaling * (alpha + slope * block / last) * merge for block, merge in zip(blocks, merges, strict=True)]


CASES = [{"inner": "ties", "alpha": None, "slope": 1.0}]


def test_without_a_slope_it_is_the_average() -> None:
    layers = network(5)
    assert_same(merged_vector("lines", layers, slope=0.0), merged_vector("average", layers))


def test_outside_the_blocks_it_is_task_arithmetic() -> None:
    layers = network(5)
    assert_same(merged_vector("lines", layers, alpha=0.3), merged_vector("task_arithmetic", layers, scaling=0.3))


def test_lines_by_hand() -> None:
    # Of two tasks alpha is 1/2; the blocks are 0, 2 and 4: the slope counts 0, 1/2 and 1 times.
    deltas = torch.tensor([[[2.0]], [[4.0]]])
    names = ("h.0.w", "h.2.w", "h.4.w", "norm.w")
    layers = [replace(layer_of("square", deltas), name=name) for name in names]
    assert merged_vector("lines", layers, slope=0.4).tolist() == pytest.approx([3.0, 4.2, 5.4, 3.0])
    assert merged_vector("lines", layers, slope=0.4, alpha=0.0, scaling=2.0).tolist() == pytest.approx([0, 2.4, 4.8, 0])


def test_each_stack_of_blocks_has_a_depth_of_its_own() -> None:
    layer = layer_of("square", torch.tensor([[[1.0]]]))
    names = ("encoder.0.w", "encoder.1.w", "decoder.0.w", "decoder.2.w", "alone.3.w")
    layers = [replace(layer, name=name) for name in names]
    assert merged_vector("lines", layers, alpha=1.0, slope=1.0).tolist() == [1.0, 2.0, 1.0, 2.0, 2.0]


def test_ties_is_brought_to_the_size_of_the_average() -> None:
    layers = network(4)
    found = merged_vector("lines", layers, inner="ties", slope=0.0)
    assert float(found.abs().sum()) == pytest.approx(float(merged_vector("average", layers).abs().sum()), rel=1e-5)
