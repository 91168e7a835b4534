from math import prod

import numpy as np
import pytest
import torch
from torch import Tensor

from merganser.layers import LayerDeltas
from tests.laws.layers import merged
from tests.laws.samples import VECTORS, network
from tests.laws.spectra import Array, assert_close, both_dtypes, drawn, every_number, numpy_of, svd
from tests.laws.test_ties import ties_of


def joint(deltas: Array) -> tuple[Array, Array]:
    """Return U and the tasks' S V_i of the deltas side by side, on the numerical rank."""
    u, s, vh = svd(np.hstack(list(deltas)))
    rank = int((s > 1e-6 * s[0]).sum())
    coordinates = np.stack(np.hsplit(s[:rank, None] * vh[:rank], len(deltas)))
    return u[:, :rank], coordinates


def ties_in_joint_space(layers: list[LayerDeltas], density: float, scaling: float) -> list[Array]:
    """KnOTS with TIES: each task's whole vector of S V_i and vectors, merged by TIES and taken back."""
    bases = [None if layer.name in VECTORS else joint(numpy_of(layer.deltas))[0] for layer in layers]
    pairs = list(zip(layers, bases, strict=True))
    spaces = [numpy_of(x.deltas) if u is None else joint(numpy_of(x.deltas))[1] for x, u in pairs]
    whole = np.concatenate([space.reshape(len(space), -1) for space in spaces], axis=1)
    done = ties_of(torch.from_numpy(whole), density, scaling).numpy()
    pieces = np.split(done, np.cumsum([prod(space.shape[1:]) for space in spaces])[:-1])
    shaped = [piece.reshape(space.shape[1:]) for piece, space in zip(pieces, spaces, strict=True)]
    return [x if u is None else u @ x for x, u in zip(shaped, bases, strict=True)]


@every_number
@both_dtypes
@pytest.mark.parametrize("density", [0.2, 0.7, 1.0])
def test_knots_is_ties_over_the_whole_joint_space(tasks: int, dtype: torch.dtype, density: float) -> None:
    layers = network(tasks, dtype=dtype)
    found = merged("knots", *layers, density=density, scaling=0.8)
    for delta, reference in zip(found, ties_in_joint_space(layers, density, 0.8), strict=True):
        assert isinstance(delta, Tensor)
        assert np.linalg.norm(numpy_of(delta) - reference) <= 1e-5 * 0.05


@every_number
@both_dtypes
def test_task_arithmetic_in_the_joint_space_with_one_over_the_tasks_is_the_average(
    tasks: int, dtype: torch.dtype
) -> None:
    layers = network(tasks, dtype=dtype)
    for delta, layer in zip(merged("knots", *layers, inner="task_arithmetic", scaling=1 / tasks), layers, strict=True):
        assert_close(delta, numpy_of(layer.deltas).mean(0), 1e-6)


def test_low_rank_tasks_have_a_joint_space_of_their_joint_rank() -> None:
    deltas = drawn(3, (20, 16), torch.float32, rank=2)
    layer = LayerDeltas("w", "matrix", ("a", "b", "c"), deltas)
    reference = ties_in_joint_space([layer], 0.3, 1.0)[0]
    assert_close(merged("knots", layer, density=0.3)[0], reference)


def test_one_task_with_density_one_is_the_identity() -> None:
    layers = network(1)
    for delta, layer in zip(merged("knots", *layers, density=1.0), layers, strict=True):
        assert_close(delta, numpy_of(layer.deltas)[0], 1e-6)


def test_the_order_of_the_tasks_changes_nothing() -> None:
    deltas = drawn(4, (14, 9))
    layer, turned = (LayerDeltas("w", "matrix", tuple("abcd"), d) for d in (deltas, deltas.flip(0)))
    assert_close(merged("knots", layer)[0], numpy_of(merged("knots", turned)[0]), 1e-10)  # type: ignore[arg-type]


@pytest.mark.parametrize(("other", "settled"), [(3.0, 2.0), (-3.0, -2.0)])
def test_a_draw_goes_to_the_sign_that_wins_the_joint_space(other: float, settled: float) -> None:
    deltas = torch.stack([torch.diag(torch.tensor([draw, other])) for draw in (2.0, -2.0)])
    layer = LayerDeltas("w", "matrix", ("a", "b"), deltas)
    assert_close(merged("knots", layer, density=0.5)[0], np.diag([settled, other]), 1e-6)


def test_knots_by_hand() -> None:
    # The joint basis of [diag(3, 1) | diag(0, -2)] is the standard one: row 1 has length 3, row 2 sqrt(5). Half of each
    # task's four entries keeps both of its own; the second place elects -, and only the second task agrees.
    deltas = torch.stack([torch.diag(torch.tensor(d)) for d in ([3.0, 1.0], [0.0, -2.0])])
    layer = LayerDeltas("w", "matrix", ("a", "b"), deltas)
    assert_close(merged("knots", layer, density=0.5)[0], np.diag([3.0, -2.0]), 1e-6)
    assert_close(merged("knots", layer, inner="task_arithmetic", scaling=0.5)[0], np.diag([1.5, -0.5]), 1e-6)
