from collections.abc import Sequence

import numpy as np
import pytest
import torch

from tests.laws.layers import matrices, merged, vectors
from tests.laws.references import EPSILON, Array, Given, PerTask, laid_out, svd, unflat
from tests.laws.spectra import assert_close, drawn, every_number, every_shape, numpy_of
from tests.laws.test_ties import reference as ties


def inner_merge(layers: Sequence[Given], inner: str, density: PerTask) -> list[Array]:
    """Merge by task arithmetic, or by ties that adds up who agrees, unscaled."""
    if inner == "ties":
        return unflat(laid_out(ties(layers, density, 1.0, "sum")), layers)
    return [layer.deltas.sum(0) for layer in layers]


def reference(
    layers: Sequence[Given], *, inner: str, density: PerTask, floor: float | None, scaling: float
) -> list[Array]:
    """Calibrate matrices; average vectors."""
    floor = floor or 1 / (0.3 * len(layers[0].tasks))
    found = zip(layers, inner_merge(layers, inner, density), strict=True)
    return [
        scaling * (calibrated(merge, layer.deltas, floor) if layer.kind == "matrix" else layer.deltas.mean(0))
        for layer, merge in found
    ]


def calibrated(merge: Array, deltas: Array, floor: float) -> Array:
    """Divide each singular value by the tasks' mean coefficient in its direction."""
    result = np.zeros_like(merge)
    u, s, vh = svd(merge)
    for left, value, right in zip(u.T, s, vh, strict=True):
        coefficients = []
        for delta in deltas:
            response = left @ delta
            negligible = np.linalg.norm(response) <= max(delta.shape) * EPSILON * np.linalg.norm(delta)
            coefficients.append(0 if negligible else value * right @ response / (response @ response))
        result += value / np.mean(np.maximum(coefficients, floor)) * np.outer(left, right)
    return result


@every_shape
@every_number
def test_equal_tasks_give_that_task(shape: tuple[int, int], tasks: int) -> None:
    delta = drawn(1, shape, torch.float32)[0]
    assert_close(merged("svc", matrices([delta] * tasks), floor=1.0)[0], numpy_of(delta))


def test_tasks_whose_rows_and_columns_are_orthogonal_are_added_up() -> None:
    deltas = torch.stack(
        [
            torch.block_diag(*(torch.zeros(4, 3) if other != task else own for other in range(3)))
            for task, own in enumerate(drawn(3, (4, 3), torch.float32))
        ]
    )
    assert_close(merged("svc", matrices(list(deltas)), floor=1.0)[0], numpy_of(deltas.sum(0)))


def test_by_default_it_is_what_the_authors_make_of_a_merge_of_scaling_0_3() -> None:
    """The authors calibrate 0.3 times the sum with 1/T: what remains of each coefficient is the same."""
    deltas = drawn(4, (9, 7))
    scaled = sum(
        s / np.mean([max(0.25, s * v @ d.T @ u / (u @ d @ d.T @ u)) for d in numpy_of(deltas)]) * np.outer(u, v)
        for u, s, v in zip(
            *(x.T if i == 0 else x for i, x in enumerate(svd(0.3 * numpy_of(deltas).sum(0)))), strict=True
        )
    )
    assert_close(merged("svc", matrices(list(deltas)))[0], scaled)


def test_svc_by_hand() -> None:
    # Along the first axis both tasks add up to 6: it counts 6 / 2 and 6 / 4 times, 2.25 on average. Along the second
    # one task has 5, and the other nothing, which counts as the floor: (1 + 1) / 2.
    layer = matrices([torch.tensor([[2.0, 0.0], [0.0, 5.0]]), torch.tensor([[4.0, 0.0], [0.0, 0.0]])])
    assert_close(merged("svc", layer, floor=1.0)[0], np.diag([6 / 2.25, 5.0]))
    assert_close(merged("svc", layer, floor=2.0, scaling=0.5)[0], np.diag([0.5 * 6 / 2.5, 0.5 * 5 / 2]))


def test_vectors_take_the_scaled_mean() -> None:
    layer = vectors([torch.tensor([1.0, 2.0]), torch.tensor([3.0, -2.0])])
    assert merged("svc", layer, scaling=0.5)[0].tolist() == [1.0, 0.0]  # type: ignore[union-attr]


def test_what_ties_leaves_out_is_not_calibrated() -> None:
    layer = matrices([torch.tensor([[4.0, 0.1]]), torch.tensor([[4.0, -0.1]])])
    assert_close(merged("svc", layer, inner="ties", density=0.5, floor=1.0)[0], np.array([[8 / (8 * 4 / 16.01), 0.0]]))
    with pytest.raises(AssertionError):
        assert_close(merged("svc", layer, floor=1.0)[0], np.array([[8 / (8 * 4 / 16.01), 0.1]]))
