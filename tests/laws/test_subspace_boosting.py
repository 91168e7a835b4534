from collections.abc import Sequence

import numpy as np
import torch

from tests.laws.layers import matrices, merged, vectors
from tests.laws.references import Array, Given, PerTask, svd
from tests.laws.spectra import assert_close, both_dtypes, drawn, every_number, every_shape, numpy_of
from tests.laws.test_svc import inner_merge
from tests.laws.test_wudi import whole


def reference(layers: Sequence[Given], *, inner: str, density: PerTask, eta: float, scaling: float) -> list[Array]:
    """Boost matrices; average vectors."""
    found = zip(layers, inner_merge(layers, inner, density), strict=True)
    return [
        scaling * (boosted(merge, eta) if layer.kind == "matrix" else layer.deltas.mean(0)) for layer, merge in found
    ]


def boosted(merge: Array, eta: float) -> Array:
    """Raise each singular value to the first at which the share is reached."""
    u, s, vh = svd(merge)
    if not len(s):
        return np.zeros_like(merge)
    reached = np.cumsum(s) >= eta * (1 - 1e-12) * s.sum()
    return (u * np.maximum(s, s[np.argmax(reached)])) @ vh


CASES = [{"eta": eta} for eta in (0.0, 0.3, 1.0)]


@every_shape
@every_number
@both_dtypes
def test_at_eta_one_the_inner_merge_stays_as_it_is(shape: tuple[int, int], tasks: int, dtype: torch.dtype) -> None:
    deltas = drawn(tasks, shape, dtype)
    assert_close(
        merged("subspace_boosting", matrices(list(deltas)), eta=1.0, scaling=0.5)[0], numpy_of(deltas).sum(0) / 2
    )


@every_shape
@every_number
def test_at_eta_zero_it_is_iso_c_with_the_largest_singular_value(shape: tuple[int, int], tasks: int) -> None:
    layer = matrices(list(drawn(tasks, shape)))
    found, mean = whole("subspace_boosting", layer, eta=0.0, scaling=1.0), whole("iso_c", layer)
    s = np.linalg.svd(numpy_of(layer.deltas).sum(0), compute_uv=False)
    assert_close(torch.from_numpy(found), mean * s[0] / s.mean())


def test_subspace_boosting_by_hand() -> None:
    # The sums are 5, 3, 2 and 0: half of 10 is reached at once, more at the second. The last direction is nobody's.
    layer = matrices([torch.diag(torch.tensor([4.0, 3.0, 1.0, 0.0])), torch.diag(torch.tensor([1.0, 0.0, 1.0, 0.0]))])
    for eta, values in ((0.5, [5, 5, 5, 0]), (0.51, [5, 3, 3, 0]), (0.81, [5, 3, 2, 0])):
        assert_close(merged("subspace_boosting", layer, eta=eta, scaling=1.0)[0], np.diag(values).astype(float))


def test_vectors_take_the_scaled_mean() -> None:
    layer = vectors([torch.tensor([1.0, 2.0]), torch.tensor([3.0, -2.0])])
    assert merged("subspace_boosting", layer, scaling=0.5)[0].tolist() == [1.0, 0.0]  # type: ignore[union-attr]
