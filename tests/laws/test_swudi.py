from collections.abc import Sequence

import numpy as np
import pytest
import torch

from tests.laws.layers import matrices, merged, vectors
from tests.laws.references import Array, Given
from tests.laws.spectra import assert_close, drawn, every_number, every_shape, numpy_of
from tests.laws.test_wudi import minimum, whole


def reference(layers: Sequence[Given], *, rank_fraction: float, time: float, scaling: float) -> list[Array]:
    """Follow the gradient flow of matrices; average vectors."""
    return [
        scaling * (flowed(layer.deltas, rank_fraction, time) if layer.kind == "matrix" else layer.deltas.mean(0))
        for layer in layers
    ]


def flowed(deltas: Array, rank_fraction: float, time: float) -> Array:
    """Leave the share exp(-time * curvature) of the way to the minimum, along each eigenvector of the curvature."""
    sizes = [np.linalg.norm(delta) or 1.0 for delta in deltas]
    stacked = np.concatenate([delta / size for delta, size in zip(deltas, sizes, strict=True)])
    _, s, vh = np.linalg.svd(stacked, full_matrices=False)
    moved = min(len(s), int(np.ceil(rank_fraction * deltas.shape[2] - 1e-9)))
    start = deltas.sum(0)
    way = minimum(deltas) - start
    shares = 1 - np.exp(-time * s[:moved] ** 2)
    return start + way @ (vh[:moved].T * shares) @ vh[:moved]


@every_shape
@every_number
def test_at_once_it_is_the_sum_and_after_long_wudis_minimum(shape: tuple[int, int], tasks: int) -> None:
    layer = matrices(list(drawn(tasks, shape, rank=min(2, *shape))))
    assert_close(merged("swudi", layer, time=1e-12)[0], numpy_of(layer.deltas).sum(0), 1e-9)
    assert_close(merged("swudi", layer, time=1e9, rank_fraction=1.0)[0], whole("wudi", layer, solve=True), 1e-6)


@every_shape
def test_one_task_is_its_own_model(shape: tuple[int, int]) -> None:
    delta = drawn(1, shape, torch.float32)
    assert_close(merged("swudi", matrices(list(delta)))[0], numpy_of(delta[0]))


def test_swudi_by_hand() -> None:
    # Along the first axis the tasks have 2 and 4: the sum is 6, the least interference 3, the curvature 1/2 + 1/2 of a
    # task's. Along the second each has what is not the other's.
    tasks = [torch.tensor([[2.0, 0.0], [0.0, 2.0]]), torch.tensor([[4.0, 0.0], [0.0, 4.0]])]
    share = 1 - np.exp(-0.5)
    assert_close(merged("swudi", matrices(tasks), time=0.5, rank_fraction=1.0)[0], (6 - 3 * share) * np.eye(2))
    apart = [torch.diag(torch.tensor([2.0, 0.0])), torch.diag(torch.tensor([4.0, 1.0]))]
    found = whole("swudi", matrices(apart), time=1e9, rank_fraction=0.5)
    # The curvature of the first is 1 + 16 / 17: the minimum is (2 + 4 * 16 / 17) over that. The second is not moved.
    assert found == pytest.approx(np.diag([(2 + 64 / 17) / (33 / 17), 1.0]))


def test_vectors_take_the_scaled_mean() -> None:
    layer = vectors([torch.tensor([1.0, 2.0]), torch.tensor([3.0, -2.0])])
    assert merged("swudi", layer, scaling=0.5)[0].tolist() == [1.0, 0.0]  # type: ignore[union-attr]
