"""The laws of the methods that keep low-rank factors per task: svd and tsv_c."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from merganser.errors import InputError
from merganser.overlays.parts import LowRank, Parts
from tests.laws.layers import merged, vectors
from tests.laws.spectra import assert_close, both_dtypes, cut, decomposed, drawn, every_number, every_shape, numpy_of

both_methods = pytest.mark.parametrize("name", ["svd", "tsv_c"])


def parts_of(name: str, deltas: Tensor, **values: Any) -> Parts:
    """Compress a matrix layer."""
    (parts,) = merged(name, decomposed(deltas), **values)
    assert isinstance(parts, Parts)
    assert parts.unified is None
    return parts


@both_methods
@every_shape
@every_number
@both_dtypes
def test_each_task_gets_its_best_approximation(
    name: str, shape: tuple[int, int], tasks: int, dtype: torch.dtype
) -> None:
    deltas = drawn(tasks, shape, dtype)
    k = int((0.3 if name == "svd" else 1 / tasks) * min(shape) + 1e-9)
    parts = parts_of(name, deltas)
    for task, delta in zip(parts.tasks, numpy_of(deltas), strict=True):
        assert_close(parts.tasks[task].delta(shape), cut(delta, k) if k else delta)


@both_methods
@every_shape
def test_rank_fraction_one_is_exact(name: str, shape: tuple[int, int]) -> None:
    deltas = drawn(3, shape, torch.float32)
    parts = parts_of(name, deltas, rank_fraction=1.0)
    for task, delta in zip(parts.tasks, numpy_of(deltas), strict=True):
        assert_close(parts.tasks[task].delta(shape), delta, 1e-6)


@both_methods
def test_a_convolution_kernel_gets_its_own_shape_back(name: str) -> None:
    kernels = drawn(1, (5, 12), torch.float32)
    (part,) = parts_of(name, kernels, rank_fraction=1.0).tasks.values()
    assert part.delta((5, 3, 2, 2)).shape == (5, 3, 2, 2)
    assert_close(part.delta((5, 3, 2, 2)).flatten(1), numpy_of(kernels)[0], 1e-6)


@both_methods
def test_a_low_rank_delta_stores_its_rank_and_an_unchanged_matrix_nothing(name: str) -> None:
    deltas = torch.cat([drawn(1, (40, 30), torch.float32, rank=2), torch.zeros(1, 40, 30)])
    parts = parts_of(name, deltas, rank_fraction=0.5)
    (part,) = parts.tasks.values()
    assert isinstance(part, LowRank)
    assert part.u.shape == (40, 2)
    assert list(parts.tasks) == ["task0"]


@both_methods
def test_vectors_are_kept_whole(name: str) -> None:
    deltas = [torch.tensor([1.0, 2.0]), torch.tensor([3.0, -2.0])]
    (parts,) = merged(name, vectors(deltas))
    assert isinstance(parts, Parts)
    assert all(torch.equal(p.delta((2,)), d) for p, d in zip(parts.tasks.values(), deltas, strict=True))


@both_methods
def test_more_vectors_than_are_stored_are_refused(name: str) -> None:
    with pytest.raises(InputError, match=r"decompose.rank_fraction is too small"):
        merged(name, decomposed(drawn(2, (20, 20)), 4), rank_fraction=0.5)


@both_methods
def test_low_rank_by_hand(name: str) -> None:
    deltas = torch.stack([torch.diag(torch.tensor(d)) for d in ([3.0, -1.0], [0.5, 2.0])])
    parts = parts_of(name, deltas, rank_fraction=0.5)
    assert_close(parts.tasks["task0"].delta((2, 2)), np.diag([3.0, 0.0]))
    assert_close(parts.tasks["task1"].delta((2, 2)), np.diag([0.0, 2.0]))
