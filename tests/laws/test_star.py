from collections.abc import Sequence

import numpy as np
import pytest
import torch

from merganser.errors import InputError
from merganser.operators.subspaces import triples_holding
from tests.laws.layers import merged, vectors
from tests.laws.references import Array, Given
from tests.laws.spectra import (
    assert_close,
    decomposed,
    drawn,
    every_number,
    every_shape,
    numpy_of,
    svd,
)


def truncate_and_rescale(deltas: Array, eta: float) -> Array:
    """STAR as the paper prints it, but for the rounding of the share."""
    merged = np.zeros_like(deltas[0])
    for delta in deltas:
        if not delta.any():
            continue  # no share of nothing
        u, s, vh = svd(delta)
        k = next(k for k in range(1, len(s) + 1) if s[:k].sum() >= eta * (1 - 1e-12) * s.sum() or k == len(s))
        merged += (u[:, :k] * s[:k]) @ vh[:k] * (s.sum() / s[:k].sum())
    return merged / len(deltas)


def reference(layers: Sequence[Given], *, eta: float, scaling: float) -> list[Array]:
    """Truncate and rescale matrices; average vectors."""
    return [
        scaling * (truncate_and_rescale(layer.deltas, eta) if layer.kind == "matrix" else layer.deltas.mean(0))
        for layer in layers
    ]


@every_shape
@every_number
def test_the_whole_nuclear_norm_gives_the_average(shape: tuple[int, int], tasks: int) -> None:
    deltas = drawn(tasks, shape)
    assert_close(merged("star", decomposed(deltas), eta=1.0)[0], numpy_of(deltas).mean(0), 1e-12)


def test_the_whole_nuclear_norm_of_low_rank_deltas_gives_the_average_too() -> None:
    deltas = drawn(3, (40, 30), torch.float32, rank=3)
    assert_close(merged("star", decomposed(deltas, 5), eta=1.0)[0], numpy_of(deltas).mean(0))


@pytest.mark.parametrize("eta", [0.05, 0.4, 0.9, 1.0])
@pytest.mark.parametrize("rank", [None, 3])
def test_each_tasks_nuclear_norm_is_preserved(eta: float, rank: int | None) -> None:
    deltas = drawn(1, (15, 10), rank=rank)
    (found,) = merged("star", decomposed(deltas), eta=eta)
    norms = [np.linalg.norm(numpy_of(d), "nuc") for d in (found, deltas[0])]  # type: ignore[arg-type]
    assert norms[0] == pytest.approx(norms[1], rel=1e-10)


@pytest.mark.parametrize(
    ("spectrum", "eta", "count"),
    [
        ([4.0, 3.0, 2.0, 1.0], 0.4, 1),  # just reached
        ([4.0, 3.0, 2.0, 1.0], 0.41, 2),
        ([4.0, 3.0, 2.0, 1.0], 0.7, 2),
        ([4.0, 3.0, 2.0, 1.0], 1.0, 4),
        ([0.7, 0.1, 0.1, 0.1], 1.0, 4),
        ([0.9, 0.9, 0.4, 0.2], 0.75, 2),  # reached but for the rounding of 0.9 + 0.9 + 0.4 + 0.2
        ([1.0], 0.1, 1),
        ([0.0, 0.0], 0.4, 1),
    ],
)
def test_the_fewest_values_that_hold_the_share(spectrum: list[float], eta: float, count: int) -> None:
    assert triples_holding(torch.tensor(spectrum, dtype=torch.float64), eta) == count


def test_more_vectors_than_are_stored_are_refused() -> None:
    with pytest.raises(InputError, match=r"decompose.rank_fraction is too small"):
        merged("star", decomposed(drawn(2, (20, 20)), 2), eta=0.9)


def test_vectors_take_the_scaled_mean() -> None:
    deltas = [torch.tensor([1.0, 2.0]), torch.tensor([3.0, -2.0])]
    assert merged("star", vectors(deltas), scaling=0.5)[0].tolist() == [1.0, 0.0]  # type: ignore[union-attr]


def test_star_by_hand() -> None:
    # 3 of diag(3, 2, 1)'s 6 are half: rank one, doubled. diag(0, 0, -5) is its own half.
    deltas = torch.stack([torch.diag(torch.tensor(d)) for d in ([3.0, 2.0, 1.0], [0.0, 0.0, -5.0])])
    assert_close(merged("star", decomposed(deltas), eta=0.5)[0], np.diag([3.0, 0.0, -2.5]))
