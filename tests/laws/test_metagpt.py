from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from tests.laws.references import Array, Given, flat
from tests.laws.samples import assert_same, in_pieces, joined, merged_vector, network


def reference(layers: Sequence[Given], *, scaling: float) -> list[Array]:
    """Weigh the tasks by their share of the squared lengths."""
    squares = (flat(layers) ** 2).sum(1)
    shares = squares / (squares.sum() or 1)
    return [
        scaling * (layer.deltas.reshape(len(shares), -1).T @ shares).reshape(layer.deltas.shape[1:]) for layer in layers
    ]


def test_metagpt_by_hand() -> None:
    # Squared lengths 1 + 1 and 4 + 2: a quarter and three quarters.
    layers = in_pieces(torch.tensor([[1.0, 1.0, 0.0], [2.0, 1.0, -1.0]]))
    assert merged_vector("metagpt", layers).tolist() == pytest.approx([1.75, 1.0, -0.75])


def test_task_vectors_of_one_length_are_averaged() -> None:
    layers = network(4)
    lengths = joined(layers).norm(dim=1).float()
    same = [replace(x, deltas=x.deltas / lengths.view(-1, *[1] * (x.deltas.ndim - 1))) for x in layers]
    assert_same(merged_vector("metagpt", same), merged_vector("average", same))


def test_one_task_is_its_own_model() -> None:
    layers = network(1)
    assert torch.equal(merged_vector("metagpt", layers), joined(layers)[0])
