from collections.abc import Sequence
from dataclasses import replace
from math import exp, log

import numpy as np
import pytest
import torch

from merganser.methods.arcee_fusion import divergences, importances
from tests.laws.layers import matrices
from tests.laws.references import Array, Given
from tests.laws.samples import merged_vector, network


def softmax(rows: Array) -> Array:
    """Give each row's softmax, raised by 1e-8."""
    exponentials = np.exp(rows - rows.max(-1, keepdims=True))
    return exponentials / exponentials.sum(-1, keepdims=True) + 1e-8


def reference(layers: Sequence[Given], *, scaling: float) -> list[Array]:
    """Score, find the fence, keep what is on it or beyond, add the tasks up."""
    merged = []
    for layer in layers:
        assert layer.base is not None
        found = np.zeros(layer.deltas.shape[1:])
        for delta in layer.deltas:
            base = np.atleast_1d(layer.base)
            tuned = softmax(base + delta)
            divergence = (tuned * np.log(tuned / softmax(base))).sum(-1, keepdims=True)
            scores = (np.abs(delta) * divergence).reshape(delta.shape)
            low, median, high = np.quantile(scores, [0.25, 0.5, 0.75], method="lower")
            found += delta * (scores >= median + 1.5 * (high - low))
        merged.append(scaling * found)
    return merged


def test_arcee_fusion_by_hand() -> None:
    # One row of ten entries: the scores are in proportion to the sizes 1 to 10, of which Q1, Q2 and Q3 are the third,
    # fifth and seventh from the smallest: what is kept is at least 5 + 1.5 * 4.
    sizes = torch.tensor([[1.0, -2.0, 3.0, 4.0, 5.0, 6.0, -7.0, 8.0, 11.0, -12.0]])
    layer = replace(matrices([sizes]), base=torch.zeros(1, 10))
    assert merged_vector("arcee_fusion", [layer]).tolist() == [0.0] * 8 + [11.0, -12.0]
    assert merged_vector("arcee_fusion", [layer], scaling=0.5).tolist() == [0.0] * 8 + [5.5, -6.0]


def test_an_entrys_importance_is_its_size_times_how_far_its_rows_softmax_moved() -> None:
    p = exp(2.0) / (exp(2.0) + 1)  # of the first row; the second does not move
    moved = p * log(2 * p) + (1 - p) * log(2 * (1 - p))
    deltas = torch.tensor([[[2.0, 0.0], [3.0, 3.0]]])
    found = importances(deltas, divergences(deltas, torch.zeros(2, 2)))
    assert found.flatten().tolist() == pytest.approx([2 * moved, 0, 0, 0], abs=1e-6)


def test_a_task_of_which_all_entries_matter_alike_is_kept_whole() -> None:
    layer = replace(matrices([torch.tensor([[1.0, -1.0], [-1.0, 1.0]])]), base=torch.zeros(2, 2))
    assert merged_vector("arcee_fusion", [layer]).tolist() == [1.0, -1.0, -1.0, 1.0]


def test_what_is_kept_is_the_tasks_own_entry() -> None:
    for layer in network(1):
        found = merged_vector("arcee_fusion", [layer])
        assert ((found == 0) | (found == layer.deltas.double().flatten())).all()
