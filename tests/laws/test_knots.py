from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from merganser import registry
from merganser.inputs.layers import LayerDeltas
from tests.laws import test_dare as dare
from tests.laws import test_ties as ties
from tests.laws.layers import matrices, merged
from tests.laws.references import Array, Given, PerTask, given, laid_out, svd
from tests.laws.samples import network
from tests.laws.spectra import assert_close, both_dtypes, drawn, every_number, numpy_of

INNERS: list[dict[str, Any]] = [
    {"inner": "ties", "density": 0.2},
    {"inner": "ties", "density": 1.0},
    {"inner": "task_arithmetic"},
    {"inner": "dare", "drop_rate": 0.6},
    {"inner": "dare_ties", "drop_rate": 0.6},
]
CASES = [{**values, "scaling": 0.7} for values in INNERS]


def reference(layers: Sequence[Given], inner: str, density: PerTask, drop_rate: PerTask, scaling: float) -> list[Array]:
    """Merge the S V_t and the vectors as one whole vector by the inner method, and go back through U."""
    joint = [joint_space(layer) if layer.kind == "matrix" else (np.eye(1), layer) for layer in layers]
    spaces = [space for _, space in joint]
    if inner == "ties":
        done = ties.reference(spaces, density, scaling)
    elif inner == "task_arithmetic":
        done = [scaling * space.deltas.sum(0) for space in spaces]
    else:
        done = dare.reference(spaces, {"dare": "task_arithmetic", "dare_ties": "ties"}[inner], drop_rate, scaling)
    return [u @ x if space.kind == "matrix" else x for (u, space), x in zip(joint, done, strict=True)]


def joint_space(layer: Given) -> tuple[Array, Given]:
    """Return U (M, K) of the deltas side by side, its columns turned as the library's are, and S V_t for the deltas.

    What rounding leaves where a task has no part is not an entry.
    """
    u, s, vh = svd(np.hstack(list(layer.deltas)))
    turned = np.sign(np.take_along_axis(u, np.abs(u).argmax(0, keepdims=True), 0))
    parts = np.stack(np.split((turned.T * s[:, None]) * vh, len(layer.tasks), axis=1))
    nothing = np.linalg.norm(parts, axis=2, keepdims=True) <= 1e-7 * s[:, None]
    unchanged = ~layer.deltas.any(1, keepdims=True)
    return u * turned, layer._replace(deltas=np.where(nothing | unchanged, 0, parts))


@every_number
@both_dtypes
@pytest.mark.parametrize("values", INNERS, ids=lambda values: "-".join(map(str, values.values())))
def test_knots_is_the_inner_method_over_the_whole_joint_space(
    tasks: int, dtype: torch.dtype, values: dict[str, Any]
) -> None:
    layers = network(tasks, dtype=dtype)
    filled = registry.get("knots").validate("methods.knots_inner", {**values, "scaling": 0.8})  # as in params.yaml
    own = {key: value for key, value in filled.items() if key != "coefficients"}
    expected = laid_out(reference(given(layers), **own))
    found = torch.cat([delta.double().flatten() for delta in merged("knots", *layers, **filled)])  # type: ignore[union-attr]
    assert_close(found, expected)


@every_number
@both_dtypes
def test_task_arithmetic_in_the_joint_space_with_one_over_the_tasks_is_the_average(
    tasks: int, dtype: torch.dtype
) -> None:
    layers = network(tasks, dtype=dtype)
    for delta, layer in zip(merged("knots", *layers, inner="task_arithmetic", scaling=1 / tasks), layers, strict=True):
        assert_close(delta, numpy_of(layer.deltas).mean(0), 1e-6)


def test_low_rank_tasks_have_a_joint_space_of_their_joint_rank() -> None:
    layer = matrices(list(drawn(3, (20, 16), torch.float32, rank=2)))
    (expected,) = reference(given([layer]), "ties", 0.3, 0.8, 1.0)
    assert_close(merged("knots", layer, density=0.3)[0], expected)


@pytest.mark.parametrize("inner", ["ties", "dare_ties"])
@both_dtypes
def test_tasks_that_write_to_different_directions_do_not_dilute_one_another(dtype: torch.dtype, inner: str) -> None:
    signs = torch.tensor([[1, 1, 1, 1], [1, -1, 1, -1], [1, 1, -1, -1], [1, -1, -1, 1]], dtype=dtype)
    sizes = 1 + torch.arange(4, dtype=dtype).view(4, 1, 1) / 2**19  # so close that rounding mixes the directions
    own = sizes * torch.randint(-7, 8, (3, 9), generator=torch.Generator().manual_seed(0)) / 64
    deltas = [torch.kron(column[:, None], x) for column, x in zip(signs, own, strict=True)]  # columns at right angles
    found = merged("knots", matrices(deltas), inner=inner, density=1.0, drop_rate=0.0)[0]
    assert_close(found, sum(map(numpy_of, deltas)))


def test_dare_in_the_joint_space_that_drops_nothing_is_task_arithmetic() -> None:
    layers = network(3)
    dropped, summed = (merged("knots", *layers, inner=x, drop_rate=0.0) for x in ("dare", "task_arithmetic"))
    assert all(map(torch.equal, dropped, summed))  # type: ignore[arg-type]


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
