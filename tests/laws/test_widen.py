from collections.abc import Sequence

import numpy as np
import pytest
import torch

from merganser.methods.widen import changes
from tests.laws.layers import base_of, matrices, merged, vectors
from tests.laws.references import Array, Given
from tests.laws.spectra import assert_close, both_dtypes, drawn, every_shape, numpy_of


def reference(layers: Sequence[Given], *, limit: float, boost: float, scaling: float) -> list[Array]:
    """Weigh matrices column by column, by both ranks, and other parameters entry by entry."""
    found = []
    for layer in layers:
        if layer.kind == "vector":
            sizes = np.abs(layer.deltas).reshape(len(layer.tasks), -1)
            weights = scores(sizes, limit, boost).reshape(layer.deltas.shape)
        else:
            models = layer.base + layer.deltas
            mean = (models.shape[2] - 1) / 2 / models.shape[2]  # of any ranks, which numpy's mean would round
            weights = sum(scores(ranks(each), limit, boost, mean) for each in measured(layer.base, models)) / 2
            weights = weights[:, None, :]
        found.append(scaling * (weights * layer.deltas).sum(0))
    return found


def measured(base: Array, models: Array) -> tuple[Array, Array]:
    """Return how far each column's length and direction are from the base's; what is rounding counts as nothing."""
    before, after = np.linalg.norm(base, axis=0), np.linalg.norm(models, axis=1)
    length = np.abs(after - before)
    cosine = (models * base).sum(1) / np.where(before * after > 0, before * after, 1)
    unlike = np.where(before * after > 0, 1 - cosine, (models != base).any(1))
    changed = (models != base).any(1)
    return length * (length > 1e-13 * before), unlike * changed * (unlike > 1e-14)


def ranks(values: Array) -> Array:
    """Count, for each value, how many of its model are smaller, and half of the others that equal it."""
    smaller = (values[:, None, :] < values[:, :, None]).sum(2)
    equal = (values[:, None, :] == values[:, :, None]).sum(2)
    return (smaller + (equal - 1) / 2) / values.shape[1]


def scores(values: Array, limit: float, boost: float, mean: Array | float | None = None) -> Array:
    """Share 1 among the models; give what is above the model's mean a score of its own."""
    shares = np.exp(values) / np.exp(values).sum(0)
    means = values.mean(1, keepdims=True) if mean is None else mean
    return np.where(values > limit * means, boost, shares)


@every_shape
@both_dtypes
def test_one_task_is_its_own_model(shape: tuple[int, int], dtype: torch.dtype) -> None:
    delta = drawn(1, shape, dtype)
    assert_close(merged("widen", matrices(list(delta)))[0], numpy_of(delta[0]), 1e-7)
    assert_close(merged("widen", vectors(list(delta[:, 0])))[0], numpy_of(delta[0, 0]), 1e-7)


def test_of_equal_tasks_the_columns_that_changed_little_are_averaged_and_the_others_added_up() -> None:
    base = numpy_of(base_of(torch.zeros(4, 4, dtype=torch.float64), "w"))
    size = np.array([0.01, 0.02, 3.0, 4.0])  # along the base, so that no direction changes
    delta = torch.from_numpy(base * size)
    found = numpy_of(merged("widen", matrices([delta] * 3))[0])  # type: ignore[arg-type]
    # By length the last two are above the mean; all directions are equal, and none is.
    assert_close(torch.from_numpy(found), base * size * np.array([1, 1, 2, 2]), 1e-9)


def test_widen_by_hand() -> None:
    # Of 1, 2 and 6 only 6 is above the mean, 3. The other task's are 1 each, none above 1. So 6 counts whole, and the
    # others by their shares of e^1 + e^1, and e^2 + e^1.
    layer = vectors([torch.tensor([1.0, 2.0, 6.0]), torch.tensor([1.0, -1.0, 1.0])])
    last = 6 + 1 / (1 + np.exp(5))
    share = 1 / (1 + np.exp(-1))
    assert_close(merged("widen", layer)[0], np.array([1.0, 2 * share - (1 - share), last]))
    twice = merged("widen", layer, boost=2.0, scaling=0.5)[0]
    assert_close(twice, np.array([1.0, 3 * share - 1, last + 6]) / 2)


@pytest.mark.parametrize("size", [1e-6, 1e-3, 1.0])
def test_small_changes_of_direction_keep_their_digits(size: float) -> None:
    base, delta = torch.tensor([[1.0], [0.0]]).double(), torch.tensor([[[0.0], [size]]]).double()
    length, direction = changes(delta, base.mT)
    assert float(direction) == pytest.approx(1 - 1 / np.sqrt(1 + size**2) if size > 1e-4 else size**2 / 2, rel=1e-6)
    assert float(length) == pytest.approx(np.sqrt(1 + size**2) - 1 if size > 1e-4 else size**2 / 2, rel=1e-6)
