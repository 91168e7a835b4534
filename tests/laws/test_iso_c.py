from collections.abc import Sequence

import numpy as np
import pytest
import scipy.linalg
import torch

from tests.laws.layers import matrices, merged, vectors
from tests.laws.references import Array, Given
from tests.laws.references import svd as known
from tests.laws.spectra import (
    assert_close,
    drawn,
    numpy_of,
    svd,
)


def iso(deltas: Array, beta: float, scaling: float) -> Array:
    """Iso-C as the paper prints it, in the directions of the sum's numerical rank."""
    u, s, vh = known(deltas.sum(0))
    return scaling * (u * ((1 - beta) * s + beta * s.sum() / min(deltas.shape[1:]))) @ vh


def reference(layers: Sequence[Given], *, beta: float, scaling: float) -> list[Array]:
    """Bring the sum's singular values to their mean, or average vectors."""
    return [
        iso(layer.deltas, beta, scaling) if layer.kind == "matrix" else scaling * layer.deltas.mean(0)
        for layer in layers
    ]


@pytest.mark.parametrize("rank", [None, 2])
def test_every_non_zero_singular_value_is_equal(rank: int | None) -> None:
    deltas = drawn(3, (14, 11), rank=rank)
    (found,) = merged("iso_c", matrices(list(deltas)))
    s = svd(numpy_of(found))[1]  # type: ignore[arg-type]
    count = 11 if rank is None else 3 * rank
    mean = svd(numpy_of(deltas).sum(0))[1].sum() / 11
    np.testing.assert_allclose(s[:count], mean, rtol=1e-10)
    np.testing.assert_allclose(s[count:], 0, atol=1e-10 * mean)


@pytest.mark.parametrize("driver", ["gesdd", "gesvd"])
def test_every_lapack_driver_agrees_on_low_rank_deltas(driver: str) -> None:
    deltas = drawn(3, (40, 30), torch.float32, rank=2)
    u, s, vh = scipy.linalg.svd(deltas.sum(0).numpy(), full_matrices=False, lapack_driver=driver)
    reference = s.sum() / 30 * u[:, :6].astype(np.float64) @ vh[:6]
    assert_close(merged("iso_c", matrices(list(deltas)))[0], reference)


def test_vectors_take_the_scaled_mean() -> None:
    deltas = [torch.tensor([1.0, 2.0]), torch.tensor([3.0, -2.0])]
    assert merged("iso_c", vectors(deltas), scaling=0.5)[0].tolist() == [1.0, 0.0]  # type: ignore[union-attr]


def test_iso_c_by_hand() -> None:
    deltas = [torch.tensor([[3.0, 0.0, 0.0], [0.0, 0.0, 0.0]]), torch.tensor([[0.0, 0.0, 0.0], [0.0, 0.0, -1.0]])]
    assert_close(merged("iso_c", matrices(deltas))[0], np.array([[2.0, 0, 0], [0, 0, -2.0]]))
    assert_close(merged("iso_c", matrices(deltas[:1]))[0], np.array([[1.5, 0, 0], [0, 0, 0]]))


def test_beta_leads_from_task_arithmetic_to_equal_singular_values() -> None:
    deltas = drawn(3, (14, 11))
    sums, even = (
        svd(numpy_of(merged(*given)[0]))
        for given in (("task_arithmetic", matrices(list(deltas))), ("iso_c", matrices(list(deltas))))
    )  # type: ignore[arg-type]
    assert_close(merged("iso_c", matrices(list(deltas)), beta=0.0)[0], numpy_of(deltas).sum(0))
    half = svd(numpy_of(merged("iso_c", matrices(list(deltas)), beta=0.5)[0]))[1]  # type: ignore[arg-type]
    np.testing.assert_allclose(half, (sums[1] / 0.4 + even[1]) / 2, rtol=1e-9)
