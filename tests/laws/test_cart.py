from collections.abc import Sequence

import numpy as np
import pytest
import torch

from tests.laws.layers import matrices, merged, vectors
from tests.laws.references import Array, Given, counted
from tests.laws.spectra import assert_close, cut, drawn, every_number, every_shape, numpy_of


def centred(deltas: Array, rank: int, scaling: float, centre: bool = True) -> Array:
    """CART as the paper prints it."""
    average = deltas.mean(0) if centre else np.zeros_like(deltas[0])
    return average + scaling * sum((cut(delta - average, rank) for delta in deltas), np.zeros_like(average))


def reference(layers: Sequence[Given], *, rank_fraction: float, scaling: float, centre: bool) -> list[Array]:
    """Truncate each matrix about the average; average vectors."""
    return [
        centred(layer.deltas, counted(rank_fraction, min(layer.deltas.shape[1:])), scaling, centre)
        if layer.kind == "matrix"
        else layer.deltas.mean(0)
        for layer in layers
    ]


@every_shape
@every_number
@pytest.mark.parametrize("rank_fraction", [0.0, 1.0])
@pytest.mark.parametrize("scaling", [0.0, 1.0, 5.0])
def test_rank_zero_and_full_rank_give_the_average(
    shape: tuple[int, int], tasks: int, rank_fraction: float, scaling: float
) -> None:
    deltas = drawn(tasks, shape)
    (found,) = merged("cart", matrices(list(deltas)), rank_fraction=rank_fraction, scaling=scaling)
    assert_close(found, numpy_of(deltas).mean(0), 1e-10)


@every_shape
@pytest.mark.parametrize(("rank_fraction", "share"), [(0.0, 0.0), (1.0, 0.7)])
def test_without_centring_full_rank_is_task_arithmetic(
    shape: tuple[int, int], rank_fraction: float, share: float
) -> None:
    deltas = drawn(3, shape)
    (found,) = merged("cart", matrices(list(deltas)), rank_fraction=rank_fraction, scaling=0.7, centre=False)
    assert_close(found, share * numpy_of(deltas).sum(0), 1e-10)


def test_the_default_keeps_eight_per_cent() -> None:
    deltas = drawn(3, (30, 50))
    assert_close(merged("cart", matrices(list(deltas)))[0], centred(numpy_of(deltas), 2, 1.0))


def test_vectors_take_the_unscaled_mean() -> None:
    deltas = [torch.tensor([1.0, 2.0]), torch.tensor([3.0, -2.0])]
    assert merged("cart", vectors(deltas), scaling=9.0)[0].tolist() == [2.0, 0.0]  # type: ignore[union-attr]


def test_cart_by_hand() -> None:
    # The average is diag(1, 0), the centred deltas diag(2, 0), diag(-1, 3) and diag(-1, -3). Their parts of rank one
    # are diag(2, 0), diag(0, 3) and diag(0, -3), and add up to diag(2, 0).
    deltas = [torch.diag(torch.tensor(d)) for d in ([3.0, 0.0], [0.0, 3.0], [0.0, -3.0])]
    assert_close(merged("cart", matrices(deltas), rank_fraction=0.5)[0], np.diag([3.0, 0.0]))
    assert_close(merged("cart", matrices(deltas), rank_fraction=0.5, scaling=0.5)[0], np.diag([2.0, 0.0]))
