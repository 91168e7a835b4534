from collections.abc import Sequence

import numpy as np
import torch

from tests.laws.layers import matrices, merged, vectors
from tests.laws.references import Array, Given, counted
from tests.laws.spectra import assert_close, both_dtypes, drawn, every_number, every_shape, numpy_of


def reference(
    layers: Sequence[Given], *, rank_fraction: float | None, steps: int, lr: float, scaling: float
) -> list[Array]:
    """Take gradient steps with momentum from the average of matrices; average vectors."""
    return [
        scaling
        * (descended(layer.deltas, rank_fraction, steps, lr) if layer.kind == "matrix" else layer.deltas.mean(0))
        for layer in layers
    ]


def descended(deltas: Array, rank_fraction: float | None, steps: int, lr: float) -> Array:
    """Move by nine tenths of the last move and a share of the gradient."""
    rank = min(deltas.shape[1:])
    kept = rank // len(deltas) if rank_fraction is None else counted(rank_fraction, rank)
    guides = []
    for delta in deltas:
        u, s, vh = np.linalg.svd(delta, full_matrices=False)
        guides.append((u[:, :kept] * s[:kept]) @ vh[:kept])
    merged, moved = deltas.mean(0), np.zeros_like(deltas[0])
    for _ in range(steps):
        gradient = np.zeros_like(merged)
        for guide, delta in zip(guides, deltas, strict=True):
            if delta.any():
                gradient += 2 * (merged - guide) @ guide.T @ guide / np.linalg.norm(delta) ** 2
        moved = 0.9 * moved + gradient
        merged = merged - lr * moved
    return merged


@every_shape
@every_number
@both_dtypes
def test_no_steps_give_the_average(shape: tuple[int, int], tasks: int, dtype: torch.dtype) -> None:
    deltas = drawn(tasks, shape, dtype)
    assert_close(merged("optmerge", matrices(list(deltas)), steps=0)[0], numpy_of(deltas).mean(0))


@every_shape
@both_dtypes
def test_one_task_is_its_own_model(shape: tuple[int, int], dtype: torch.dtype) -> None:
    delta = drawn(1, shape, dtype)
    assert_close(merged("optmerge", matrices(list(delta)))[0], numpy_of(delta[0]))


def test_optmerge_by_hand() -> None:
    # The average is 3; the guides are 2 and 4 in their only direction, each divided by its square: the gradient is
    # 2 (1 - 1). Of deltas 2 and 6 at right angles only the first half of a rank of two is a guide.
    flat = matrices([torch.tensor([[2.0]]), torch.tensor([[4.0]])])
    assert_close(merged("optmerge", flat, rank_fraction=1.0)[0], np.array([[3.0]]))
    layer = matrices([torch.diag(torch.tensor([2.0, 0.0])), torch.diag(torch.tensor([0.0, 6.0]))])
    # From 1 and 3, by 2 * 0.01 * (1 - 2) * 4 / 4 and 2 * 0.01 * (3 - 6) * 36 / 36.
    assert_close(merged("optmerge", layer, steps=1, lr=0.01)[0], np.diag([1.02, 3.06]))


def test_many_steps_come_to_wudis_minimum() -> None:
    layer = matrices(list(drawn(2, (6, 12), rank=3)))
    values = {"rank_fraction": 1.0, "steps": 20_000, "lr": 0.01}
    assert_close(merged("optmerge", layer, **values)[0], numpy_of(merged("wudi", layer, solve=True)[0]), 1e-3)  # type: ignore[arg-type]


def test_vectors_take_the_scaled_mean() -> None:
    layer = vectors([torch.tensor([1.0, 2.0]), torch.tensor([3.0, -2.0])])
    assert merged("optmerge", layer, scaling=0.5)[0].tolist() == [1.0, 0.0]  # type: ignore[union-attr]
