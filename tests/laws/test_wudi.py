from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from merganser.inputs.layers import LayerDeltas
from tests.laws.layers import matrices, merged, vectors
from tests.laws.references import Array, Given
from tests.laws.spectra import assert_close, both_dtypes, drawn, every_number, every_shape, numpy_of


def reference(layers: Sequence[Given], *, steps: int, lr: float, solve: bool, scaling: float) -> list[Array]:
    """Minimise the interference of matrices; average vectors."""
    return [scaling * _merged(layer, steps, lr, solve) for layer in layers]


def _merged(layer: Given, steps: int, lr: float, solve: bool) -> Array:
    if layer.kind == "vector":
        return layer.deltas.mean(0)
    return minimum(layer.deltas) if solve else descended(layer.deltas, steps, lr)


def descended(deltas: Array, steps: int, lr: float) -> Array:
    """Take Adam's steps from the sum, by the gradient of each task's squared distance."""
    merged, mean, square = deltas.sum(0), 0.0, 0.0
    for step in range(1, steps + 1):
        gradient = 0 * merged
        for delta in deltas:
            size = np.linalg.norm(delta) ** 2
            gradient = gradient + (2 * ((merged - delta) @ delta.T) @ delta / size if size else 0)
        mean, square = 0.9 * mean + 0.1 * gradient, 0.999 * square + 0.001 * gradient**2
        merged = merged - lr * (mean / (1 - 0.9**step)) / (np.sqrt(square / (1 - 0.999**step)) + 1e-8)
    return merged


def minimum(deltas: Array) -> Array:
    """Solve the normal equations: by least squares, one row of normalised deltas for each row of each task's delta."""
    sizes = [np.linalg.norm(delta) or 1.0 for delta in deltas]
    left = np.concatenate([delta / size for delta, size in zip(deltas, sizes, strict=True)])
    right = np.concatenate([delta @ delta.T / size for delta, size in zip(deltas, sizes, strict=True)])
    epsilon = max(left.shape) * float(np.finfo(np.float32).eps)
    return np.linalg.lstsq(left, right, rcond=epsilon)[0].T


def whole(name: str, layer: LayerDeltas, **values: Any) -> Array:
    """Merge a layer into one delta."""
    (found,) = merged(name, layer, **values)
    assert isinstance(found, torch.Tensor)
    return numpy_of(found)


@pytest.mark.parametrize("steps", [0, 5, 300])
@every_shape
@both_dtypes
def test_one_task_is_its_own_model(shape: tuple[int, int], dtype: torch.dtype, steps: int) -> None:
    delta = drawn(1, shape, dtype)
    assert_close(merged("wudi", matrices(list(delta)), steps=steps)[0], numpy_of(delta[0]), 1e-7)


@pytest.mark.parametrize("solve", [True, False])
def test_tasks_whose_rows_are_orthogonal_are_added_up(solve: bool) -> None:
    deltas = drawn(3, (6, 12), torch.float64)
    for task, delta in enumerate(deltas):
        delta[:, : 4 * task] = 0
        delta[:, 4 * task + 4 :] = 0
    assert_close(merged("wudi", matrices(list(deltas)), solve=solve)[0], numpy_of(deltas.sum(0)), 1e-12)


@every_shape
@every_number
def test_many_small_steps_come_near_to_the_minimum(shape: tuple[int, int], tasks: int) -> None:
    deltas = drawn(tasks, shape, rank=min(2, *shape))
    layer = matrices(list(deltas))
    settings: list[dict[str, Any]] = [{"solve": True}, {"steps": 0}, {"steps": 3000, "lr": 1e-4}]
    exact, start, near = (whole("wudi", layer, **values) for values in settings)
    left = [
        sum(np.linalg.norm((m - d) @ d.T) ** 2 / np.linalg.norm(d) ** 2 for d in numpy_of(deltas))
        for m in (exact, start, near)
    ]
    assert left[0] <= left[2] * (1 + 1e-9) + 1e-15
    assert left[2] - left[0] <= 0.2 * (left[1] - left[0]) + 1e-15


def test_wudi_by_hand() -> None:
    # Deltas 2 and 4 along one axis: the guides weigh (4 + 16) / 1 alike once normalised, so the minimum is their mean.
    # Across, 1 is one task's alone. The first of Adam's steps is one learning rate, whatever the gradient's size.
    layer = matrices([torch.tensor([[2.0, 0.0], [0.0, 0.0]]), torch.tensor([[4.0, 0.0], [0.0, 0.0]])])
    assert_close(merged("wudi", layer, solve=True)[0], np.array([[3.0, 0.0], [0.0, 0.0]]))
    assert_close(merged("wudi", layer, steps=1, lr=0.01)[0], np.array([[5.99, 0.0], [0.0, 0.0]]))
    assert_close(merged("wudi", layer, steps=2, lr=0.01, scaling=2.0)[0], np.array([[11.96, 0.0], [0.0, 0.0]]))


def test_vectors_take_the_scaled_mean() -> None:
    layer = vectors([torch.tensor([1.0, 2.0]), torch.tensor([3.0, -2.0])])
    assert merged("wudi", layer, scaling=0.5)[0].tolist() == [1.0, 0.0]  # type: ignore[union-attr]
