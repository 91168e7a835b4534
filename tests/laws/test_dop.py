from collections.abc import Sequence

import numpy as np
import pytest
import torch

from tests.laws.layers import matrices, merged, vectors
from tests.laws.references import Array, Given, svd
from tests.laws.spectra import assert_close, both_dtypes, drawn, every_shape, numpy_of


def reference(
    layers: Sequence[Given], *, eta: float, alpha: float, beta: float, steps: int, lr: float, scaling: float
) -> list[Array]:
    """Merge the tasks of each parameter one after another: matrices by Adam's steps, others by halves."""
    found = []
    for layer in layers:
        merged = layer.deltas[0]
        for delta in layer.deltas[1:]:
            start = (merged + delta) / 2
            merged = start if layer.kind == "vector" else descended(start, merged, delta, eta, alpha, beta, steps, lr)
        found.append(scaling * merged)
    return found


def descended(
    point: Array, before: Array, own: Array, eta: float, alpha: float, beta: float, steps: int, lr: float
) -> Array:
    """Take the steps between two targets from their average."""
    targets = [(target, *main(target, eta)) for target in (before, own)]
    mean, square, weights = 0.0, 0.0, np.array([alpha, 1 - alpha])
    for step in range(1, steps + 1):
        losses, slopes = [], []
        for target, u, s, vh in targets:
            beside = point - target
            left, right = np.diag(s) @ u.T @ beside, beside @ vh.T @ np.diag(s)
            losses.append((left**2).sum() + (right**2).sum())
            slopes.append(2 * (u @ np.diag(s) @ left + right @ np.diag(s) @ vh))
        weights = beta * weights + (1 - beta) * nearest_to_zero(
            [slope / loss if loss > 0 else slope for slope, loss in zip(slopes, losses, strict=True)]
        )
        gradient = weights[0] * slopes[0] + weights[1] * slopes[1]
        mean, square = 0.9 * mean + 0.1 * gradient, 0.999 * square + 0.001 * gradient**2
        point = point - lr * (mean / (1 - 0.9**step)) / (np.sqrt(square / (1 - 0.999**step)) + 1e-8)
    return point


def main(target: Array, eta: float) -> tuple[Array, Array, Array]:
    """Keep the fewest leading singular triples that hold the share."""
    u, s, vh = svd(target)
    count = min(int((np.cumsum(s) < eta * (1 - 1e-12) * s.sum()).sum()) + 1, len(s))
    return u[:, :count], s[:count], vh[:count]


def nearest_to_zero(ends: Sequence[Array]) -> Array:
    """Return the weights of the point nearest to 0 on the line between two gradients."""
    way = ends[0] - ends[1]
    if not way.any():
        return np.array([0.5, 0.5])
    first = np.clip(-(ends[1] * way).sum() / (way * way).sum(), 0, 1)
    return np.array([first, 1 - first])


CASES = [{"beta": 1.0}, {"eta": 0.3, "beta": 0.0}, {"steps": 0, "scaling": 0.5}]


@every_shape
@both_dtypes
def test_one_task_is_its_own_model_and_equal_tasks_are_that_task(shape: tuple[int, int], dtype: torch.dtype) -> None:
    delta = drawn(1, shape, dtype)[0]
    for tasks in (1, 3):
        assert_close(merged("dop", matrices([delta] * tasks))[0], numpy_of(delta), 1e-7)


def test_without_steps_each_task_is_averaged_with_the_merge_so_far() -> None:
    deltas = drawn(3, (5, 7), torch.float64)
    halves = numpy_of(deltas[0] / 4 + deltas[1] / 4 + deltas[2] / 2)
    assert_close(merged("dop", matrices(list(deltas)), steps=0)[0], halves, 1e-12)
    assert_close(merged("dop", vectors(list(deltas[:, 0])))[0], halves[0], 1e-12)


@pytest.mark.parametrize("beta", [1.0, 0.999, 0.0])
def test_steps_lead_to_the_sum_of_tasks_without_a_row_or_a_column_in_common(beta: float) -> None:
    # There both distances are 0: nothing of either lies in the other's directions.
    deltas = drawn(2, (6, 8), torch.float64)
    deltas[0, 3:], deltas[0, :, 4:], deltas[1, :3], deltas[1, :, :4] = 0, 0, 0, 0
    far, near = (
        merged("dop", matrices(list(deltas)), steps=steps, lr=1e-3, beta=beta, alpha=0.5)[0] for steps in (0, 400)
    )
    assert torch.linalg.norm(near - deltas.sum(0)) < 0.02 * torch.linalg.norm(far - deltas.sum(0))  # type: ignore[operator]


def test_dop_by_hand() -> None:
    # Of 1 and 3 the average is 2. The distances are 2 (2 - 1)^2 1^2 = 2 and 2 (2 - 3)^2 3^2 = 18, their slopes 4 and
    # -36, divided by the distances 2 and -2: these cancel by halves. Adam's first step is one learning rate against
    # the slope.
    layer = matrices([torch.tensor([[1.0]]), torch.tensor([[3.0]])])
    assert_close(merged("dop", layer, steps=1, lr=0.01, beta=0.0)[0], np.array([[2.01]]), 1e-7)
    # With a weight of 0.95 on the first the slope is 0.95 4 - 0.05 36 = 2: the other way.
    assert_close(merged("dop", layer, steps=1, lr=0.01, beta=1.0, alpha=0.95)[0], np.array([[1.99]]), 1e-7)


def test_a_direction_outside_the_share_counts_in_no_distance() -> None:
    first, second = torch.diag(torch.tensor([4.0, 1.0])), torch.diag(torch.tensor([2.0, 1.0])).flip(0)
    at = {eta: merged("dop", matrices([first, second]), eta=eta, steps=1, lr=0.01)[0] for eta in (0.6, 1.0)}
    assert not torch.equal(*at.values())  # type: ignore[arg-type]


def test_the_order_of_the_tasks_matters() -> None:
    deltas = list(drawn(3, (4, 5)))
    found, turned = (merged("dop", matrices(each))[0] for each in (deltas, deltas[::-1]))
    assert not torch.allclose(found, turned)  # type: ignore[arg-type]
