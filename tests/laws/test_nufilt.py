from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from merganser.operators.drop import generator_of
from tests.laws.layers import matrices, merged
from tests.laws.references import Array, Given, svd
from tests.laws.spectra import assert_close, both_dtypes, drawn, every_shape, numpy_of


def reference(
    layers: Sequence[Given], *, k: int, k_own: int, rank: int, steps: int, lr: float, scaling: float
) -> list[Array]:
    """Add the tasks of each matrix one after another; average others."""
    found = []
    for layer in layers:
        if layer.kind == "vector":
            found.append(scaling * layer.deltas.mean(0))
            continue
        so_far = layer.deltas[0]
        for task, delta in zip(layer.tasks[1:], layer.deltas[1:], strict=True):
            generator = generator_of(layer.seed, task, layer.name)
            first = 0.02 * torch.randn(rank, delta.shape[1], generator=generator, dtype=torch.float64).numpy()
            so_far = so_far + delta @ gate(delta, so_far, k, k_own, first, steps, lr)
        found.append(scaling * so_far)
    return found


def gate(delta: Array, so_far: Array, k: int, k_own: int, first: Array, steps: int, lr: float) -> Array:
    """Return the projector outside the merge's directions and what Adam adds to it, by each loss's own gradient."""
    known, own = svd(so_far)[2][:k].T, svd(delta)[2][:k_own].T
    projector = np.eye(delta.shape[1]) - known @ known.T
    left, right = np.zeros(first.T.shape), first
    means, squares = [0.0, 0.0], [0.0, 0.0]
    for step in range(1, steps + 1):
        slopes = [np.zeros(left.shape), np.zeros(right.shape)]
        # Both targets minus the merge; what the merge has in its own directions, the projector leaves as it is.
        lacks = ((delta - so_far - delta @ (projector + left @ right)) @ own, -delta @ (left @ right) @ known)
        for lack, directions in zip(lacks, (own, known), strict=True):
            slopes[0] = slopes[0] - 2 * delta.T @ lack @ (right @ directions).T
            slopes[1] = slopes[1] - 2 * (delta @ left).T @ lack @ directions.T
        for at, slope in enumerate(slopes):
            means[at] = 0.9 * means[at] + 0.1 * slope
            squares[at] = 0.999 * squares[at] + 0.001 * slope**2
        moves = [
            lr * (mean / (1 - 0.9**step)) / (np.sqrt(square / (1 - 0.999**step)) + 1e-8)
            for mean, square in zip(means, squares, strict=True)
        ]
        left, right = left - moves[0], right - moves[1]
    return projector + left @ right


CASES = [{"k": 2, "k_own": 3, "rank": 4}, {"k": 3, "steps": 0}]


@every_shape
@both_dtypes
def test_one_task_is_its_own_model(shape: tuple[int, int], dtype: torch.dtype) -> None:
    delta = drawn(1, shape, dtype)
    assert_close(merged("nufilt", matrices(list(delta)))[0], numpy_of(delta[0]), 1e-7)


def test_without_steps_the_merge_keeps_its_response_in_its_leading_directions() -> None:
    deltas = drawn(2, (6, 9), torch.float64)
    found = numpy_of(merged("nufilt", matrices(list(deltas)), k=3, steps=0)[0])  # type: ignore[arg-type]
    leading = svd(numpy_of(deltas[0]))[2][:3].T
    assert np.allclose(found @ leading, numpy_of(deltas[0]) @ leading, atol=1e-12)
    assert not np.allclose(found, numpy_of(deltas[0]), atol=1e-3)


def test_steps_bring_the_merge_nearer_to_the_task_in_the_tasks_directions() -> None:
    deltas = 50 * drawn(2, (6, 9), torch.float64)
    layer, own = matrices(list(deltas)), svd(numpy_of(deltas[1]))[2][:2].T
    far, near = (
        np.linalg.norm((numpy_of(merged("nufilt", layer, k=6, k_own=2, steps=steps)[0]) - numpy_of(deltas[1])) @ own)  # type: ignore[arg-type]
        for steps in (0, 200)
    )
    assert near < 0.5 * far


def test_nufilt_by_hand() -> None:
    # The first task responds to the first input alone: of the second's 5 and 7, the 5 is taken out.
    layer = matrices([torch.tensor([[2.0, 0.0]]), torch.tensor([[5.0, 7.0]])])
    assert_close(merged("nufilt", layer, k=1, steps=0, scaling=0.5)[0], np.array([[1.0, 3.5]]))


def test_the_seed_decides_what_the_steps_begin_with() -> None:
    layer = matrices(list(drawn(2, (6, 9))))
    one, other = (merged("nufilt", replace(layer, seed=seed), k=3)[0] for seed in (0, 1))
    assert not torch.equal(one, other)  # type: ignore[arg-type]
