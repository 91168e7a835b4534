from collections.abc import Sequence

import numpy as np
import torch

from merganser.methods.doge import shared_directions
from tests.laws.layers import matrices, merged, vectors
from tests.laws.references import EPSILON, Array, Given, PerTask, counted, flat, largest_of_each, svd, unflat
from tests.laws.samples import assert_same, merged_vector
from tests.laws.spectra import assert_close, drawn


def reference(
    layers: Sequence[Given],
    *,
    length: float,
    density: PerTask,
    common_fraction: float,
    steps: int,
    lr: float,
    scaling: float,
) -> list[Array]:
    """Correct matrices, and add up the entries that are the largest of all matrices; average vectors."""
    chosen = [layer for layer in layers if layer.kind == "matrix"]
    masks = (
        dict(zip((x.name for x in chosen), unflat(largest_of_each(flat(chosen), density, chosen), chosen), strict=True))
        if chosen
        else {}
    )
    merged = []
    for layer in layers:
        if layer.kind == "vector":
            merged.append(scaling * layer.deltas.mean(0))
            continue
        norms = np.linalg.norm(layer.deltas, axis=(1, 2))
        weights = np.where(norms > 0, length / np.where(norms > 0, norms, 1), 0)
        moved = correction(layer.deltas, weights, outside(layer.deltas, common_fraction), steps, lr)
        merged.append(scaling * np.tensordot(weights, (layer.deltas + moved) * masks[layer.name], 1))
    return merged


def outside(deltas: Array, common_fraction: float) -> Array:
    """Return the projector off the directions that the tasks share."""
    rank = min(deltas.shape[1:])
    count, each = counted(common_fraction, rank), rank // len(deltas)
    stacked = np.hstack([svd(delta)[0][:, :each] for delta in deltas])
    if not count or not stacked.any():
        return np.eye(len(stacked))
    u, s, _ = svd(stacked)
    u = u[:, s >= s[min(count, len(s)) - 1] * (1 - 1e-6)]
    return np.eye(len(u)) - u @ u.T


def correction(deltas: Array, weights: Array, projector: Array, steps: int, lr: float) -> Array:
    """Take Adam's steps from nothing, by the gradient of the squared row sums."""
    moved, mean, square, most = np.zeros_like(deltas[0]), 0.0, 0.0, 0.0
    for step in range(1, steps + 1):
        merged = np.tensordot(weights, deltas + moved, 1)
        gradient = np.zeros_like(moved)
        for delta in deltas:
            gradient -= 2 * weights.sum() * (delta * (delta - merged)).sum(1, keepdims=True) * delta
        gradient = projector @ gradient
        most = most or 1e-12 * np.abs(deltas).max() ** 3 * deltas.shape[2] * weights.sum()
        gradient[np.abs(gradient) <= most] = 0
        mean, square = 0.9 * mean + 0.1 * gradient, 0.999 * square + 0.001 * gradient**2
        moved = moved - lr * (mean / (1 - 0.9**step)) / (np.sqrt(square / (1 - 0.999**step)) + 1e-8)
    return moved


def test_doge_by_hand() -> None:
    # Of one row each, 3 4 and 0 5 of length 5, brought to length 1: the merge begins as 0.6 1.8. One step is one
    # learning rate against the gradient's sign. The conflicts are 3 * 2.4 + 4 * 2.2 and 5 * 3.2, both too small a
    # merge: the correction is positive. At density 1/2 each task keeps its larger entry, one of two.
    layer = matrices([torch.tensor([[3.0, 4.0]]), torch.tensor([[0.0, 5.0]])])
    values = {"length": 1.0, "steps": 1, "lr": 0.01, "common_fraction": 0.0}
    assert_close(merged("doge", layer, density=1.0, **values)[0], np.array([[0.6 + 0.002, 1.8 + 0.004]]))
    assert_close(merged("doge", layer, density=0.5, **values)[0], np.array([[0.0, 1.8 + 0.004]]))


def test_without_steps_it_adds_up_each_tasks_largest_entries_at_one_length() -> None:
    deltas = drawn(3, (8, 12), torch.float32)
    unit = deltas / deltas.norm(dim=(1, 2), keepdim=True)
    found = merged("doge", matrices(list(deltas)), steps=0, density=1.0, length=0.5)[0]
    assert_close(found, 0.5 * unit.sum(0).double().numpy())


def test_the_correction_stays_outside_what_the_tasks_share() -> None:
    deltas = drawn(3, (9, 12))
    layer, values = matrices(list(deltas)), {"density": 1.0, "steps": 50}
    moved = merged_vector("doge", [layer], **values) - merged_vector("doge", [layer], density=1.0, steps=0)
    shared = shared_directions(deltas, 1 / 6)
    assert shared.shape == (9, 1)
    free = merged_vector("doge", [layer], common_fraction=0.0, **values) - merged_vector(
        "doge", [layer], density=1.0, steps=0
    )
    along, beside = ((shared.mT @ x.view(9, 12)).norm() / x.norm() for x in (moved, free))
    assert moved.norm() > 1e-6
    assert along < beside  # Adam's steps, taken entry by entry, leave the subspace of the gradient a little


def test_matrices_alone_have_a_say_in_what_is_large() -> None:
    layer = matrices([torch.tensor([[3.0, 4.0]])])
    other = vectors([torch.tensor([100.0, 200.0])])
    found = merged("doge", layer, other, density=0.5, steps=0, length=5.0)
    assert_same(found[0].flatten().double(), torch.tensor([0.0, 4.0]).double())  # type: ignore[union-attr]
    assert found[1].tolist() == [100.0, 200.0]  # type: ignore[union-attr]
    assert EPSILON < 1e-6
