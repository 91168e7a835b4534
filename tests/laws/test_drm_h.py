from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from merganser.operators import drm as operator
from merganser.operators.drm import JointSpace, joint_space, pruned
from merganser.operators.joint_layers import joint_factors
from tests.laws.layers import matrices, merged, vectors
from tests.laws.references import EPSILON, Array, Given, counted
from tests.laws.references import svd as known
from tests.laws.spectra import assert_close, both_dtypes, drawn, every_number, every_shape, numpy_of, svd
from tests.support import each

both_ways = pytest.mark.parametrize("name", ["drm_h", "drm_v"])


def gram_schmidt(matrix: Array) -> tuple[Array, Array, Array]:
    """Return Q, the lengths of the rows of R, and these rows at length one: column by column, on the numerical rank."""
    rounding = max(matrix.shape) * EPSILON * np.linalg.norm(matrix, 2)
    q, rows = np.zeros((len(matrix), 0)), np.zeros((0, matrix.shape[1]))
    for place, column in enumerate(matrix.T):
        rest = column - q @ (q.T @ column)
        rest = rest - q @ (q.T @ rest)
        if np.linalg.norm(rest) > rounding:
            q = np.column_stack([q, rest / np.linalg.norm(rest)])
            rows = np.vstack([rows, np.zeros((1, matrix.shape[1]))])
        rows[:, place] = q.T @ column
    lengths = np.linalg.norm(rows, axis=1)
    return q, lengths, rows / lengths[:, None]


def decom_renorm_merge(
    deltas: Array,
    density: float,
    *,
    decomposition: str = "svd",
    rank_fraction: float = 1.0,
    pruning: str = "together",
    renormalise: bool = True,
    elect: bool = True,
    averaging: str = "disjoint",
) -> Array:
    """DRM-H as equations 1 to 7 print it, thin on the numerical rank, counting what is left of the pruned entries."""
    columns = deltas.shape[2]
    u, s, vh = (known if decomposition == "svd" else gram_schmidt)(np.hstack(list(deltas)))
    if not len(s):  # nothing but zeros
        return np.zeros(deltas.shape[1:])
    u, s, vh = (part[..., : max(1, counted(rank_fraction, len(s)))] for part in (u, s, vh.T))
    vh = vh.T
    blocks = np.stack([vh[:, t * columns : (t + 1) * columns] for t in range(len(deltas))])
    lengths = np.linalg.norm(blocks, axis=2, keepdims=True)
    there = lengths > 1e-7
    lengths = lengths if renormalise else np.ones_like(lengths)
    unit = np.divide(blocks, lengths, out=np.zeros_like(blocks), where=there)
    pruned = np.abs(unit).reshape(1 if pruning == "together" else len(unit), -1)
    count = counted(density, pruned.shape[1])
    least = -np.sort(-pruned)[:, max(count, 1) - 1, None, None] * (1 - 1e-9)
    entries = s[:, None] * lengths * np.where((np.abs(unit) >= least) & (count > 0), unit, 0)
    elected = np.sign(entries.sum(0))
    agreeing = np.where(entries * elected > 0, entries, 0) if elect else entries
    counts = {"disjoint": np.maximum((agreeing != 0).sum(0), 1), "simple": len(deltas), "sum": 1}
    return u @ (agreeing.sum(0) / counts[averaging])


CASES = [
    {"density": 1.0},
    {"elect": False, "averaging": "sum"},
    {"renormalise": False, "elect": False, "averaging": "simple"},
    {"rank_fraction": 0.5, "pruning": "each"},
]


def reference(layers: Sequence[Given], *, density: float, scaling: float, **steps: Any) -> list[Array]:
    """Merge matrices in their joint space; average vectors."""
    return [
        scaling
        * (decom_renorm_merge(layer.deltas, density, **steps) if layer.kind == "matrix" else layer.deltas.mean(0))
        for layer in layers
    ]


@every_shape
@every_number
@both_ways
@both_dtypes
@pytest.mark.parametrize("renormalise", [True, False])
def test_without_pruning_election_and_averaging_the_exact_sum_is_left(
    name: str, shape: tuple[int, int], tasks: int, dtype: torch.dtype, renormalise: bool
) -> None:
    deltas = drawn(tasks, shape, dtype)
    steps = {"density": 1, "renormalise": renormalise, "elect": False, "averaging": "sum"}
    tolerance = 1e-12 if dtype == torch.float64 else 3e-7  # one rounding
    assert_close(merged(name, matrices(list(deltas)), **steps)[0], numpy_of(deltas).sum(0), tolerance)


@both_ways
def test_the_simple_average_of_all_entries_is_the_average(name: str) -> None:
    deltas = drawn(4, (9, 12), torch.float32)
    steps = {"density": 1, "elect": False, "averaging": "simple"}
    assert_close(merged(name, matrices(list(deltas)), **steps)[0], numpy_of(deltas).mean(0), 3e-7)


def test_without_renormalisation_small_rows_are_pruned_first() -> None:
    # Joint row direction 1 is [3 0 | 4 0], direction 2 [0 .1 | 0 0]. Unit rows: 1, 1 and 1; rows of V_t: .6, .8 and 1.
    deltas = [torch.tensor([[3.0, 0.0], [0.0, 0.1]]), torch.tensor([[4.0, 0.0], [0.0, 0.0]])]
    even = merged("drm_h", matrices(deltas), density=0.25)[0]
    assert_close(even, np.array([[3.5, 0.0], [0.0, 0.1]]))  # all three are equal: kept together
    uneven = merged("drm_h", matrices(deltas), density=0.25, renormalise=False)[0]
    assert_close(uneven, np.array([[4.0, 0.0], [0.0, 0.1]]))  # two of eight: .6 is pruned


@both_ways
def test_low_rank_tasks_are_merged_on_their_joint_rank(name: str) -> None:
    deltas = drawn(3, (20, 16), torch.float32, rank=2)
    assert joint_space(matrices(list(deltas))).u.shape == (20, 6)
    exact = numpy_of(deltas if name == "drm_h" else deltas.mT)
    u, s, vh = svd(np.hstack(list(exact)))
    cut = (u[:, :6] * s[:6]) @ vh[:6]  # float32 left noise below the rank
    reference = decom_renorm_merge(np.stack(np.hsplit(cut, 3)), 0.2)
    assert_close(merged(name, matrices(list(deltas)))[0], reference if name == "drm_h" else reference.T)


def of_spectrum(kind: str) -> Tensor:
    """Draw a layer large enough that last digits decide about some of its entries."""
    deltas = drawn(4, (160, 90), torch.float32)
    if kind == "shared":
        deltas += 10 * drawn(1, (160, 90), torch.float32, rank=3, seed=1)
    if kind == "ill-conditioned":
        deltas *= torch.logspace(0, -3.5, 160).unsqueeze(1)
    if kind == "deficient":
        deltas = drawn(4, (160, 90), torch.float32, rank=8)
    if kind == "twins":
        deltas[1:3] = deltas[0]
    return deltas


every_spectrum = pytest.mark.parametrize("kind", ["full", "shared", "ill-conditioned", "deficient", "twins"])


@every_spectrum
def test_unit_rows_in_float32_prune_and_elect_what_float64_does(kind: str) -> None:
    deltas = of_spectrum(kind)
    assert_close(merged("drm_h", matrices(list(deltas)))[0], decom_renorm_merge(numpy_of(deltas), 0.2), 2e-7)


@every_spectrum
def test_with_too_many_entries_in_doubt_all_are_kept_in_float64(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    layer = matrices(list(of_spectrum(kind)))
    found = merged("drm_h", layer)[0]
    monkeypatch.setattr(operator, "DOUBTS", -1)
    assert_close(merged("drm_h", layer)[0], numpy_of(found), 2e-7)  # type: ignore[arg-type]


@both_ways
@both_dtypes
def test_tasks_that_cancel_leave_nothing(name: str, dtype: torch.dtype) -> None:
    deltas = drawn(2, (30, 20), dtype)
    found = merged(name, matrices([*deltas, *-deltas]), density=1.0)[0]
    assert isinstance(found, Tensor)
    assert not found.any()


@both_ways
@both_dtypes
def test_the_order_of_the_tasks_changes_nothing(name: str, dtype: torch.dtype) -> None:
    deltas = drawn(5, (14, 9), dtype)
    straight = merged(name, matrices(list(deltas)))[0]
    assert_close(merged(name, matrices(list(deltas.flip(0))))[0], numpy_of(straight), 1e-6)  # type: ignore[arg-type]


def test_flipping_a_singular_vectors_sign_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    deltas = drawn(3, (8, 10))
    straight = merged("drm_h", matrices(list(deltas)))[0]
    space = joint_factors(matrices(list(deltas)))
    flips = torch.tensor([1.0, -1.0] * 4, dtype=torch.float64)
    rows = lambda task: space.coordinates(task) * flips.unsqueeze(1)  # noqa: E731
    monkeypatch.setattr(
        "merganser.operators.drm.joint_factors", lambda _: space._replace(u=space.u * flips, coordinates=rows)
    )
    assert_close(merged("drm_h", matrices(list(deltas)))[0], numpy_of(straight), 1e-12)  # type: ignore[arg-type]


def test_a_task_without_a_share_in_a_direction_keeps_a_zero_row() -> None:
    deltas = torch.zeros(3, 6, 8, dtype=torch.float64)
    deltas[0, :2], deltas[1, 2:] = drawn(1, (2, 8))[0], drawn(1, (4, 8))[0]
    space = joint_space(matrices(list(deltas)))
    assert [int((rows != 0).any(1).sum()) for rows in space.vh] == [2, 4, 0]
    assert torch.equal(space.vh.norm(dim=2) > 0.5, space.s > 0)


@both_ways
@both_dtypes
@each("shape", [(6, 4), (4, 6), (5, 5), (1, 3), (3, 1)])
def test_by_qr_too_the_exact_sum_is_left(name: str, shape: tuple[int, int], dtype: torch.dtype) -> None:
    deltas = drawn(3, shape, dtype)
    steps = {"decomposition": "qr", "density": 1, "elect": False, "averaging": "sum"}
    tolerance = 1e-12 if dtype == torch.float64 else 3e-7
    assert_close(merged(name, matrices(list(deltas)), **steps)[0], numpy_of(deltas).sum(0), tolerance)


def test_by_qr_the_first_task_has_the_first_direction_for_itself() -> None:
    # Q is the identity, and R the matrices side by side: [2 0 | 1 0] above [0 0 | 0 3].
    first, second = torch.tensor([[2.0, 0.0], [0.0, 0.0]]), torch.tensor([[1.0, 0.0], [0.0, 3.0]])
    assert_close(merged("drm_h", matrices([first, second]), decomposition="qr", density=1.0)[0], np.diag([1.5, 3.0]))
    leaning = torch.tensor([[3.0, 0.0], [4.0, 0.0]])
    one, other = (
        merged("drm_h", matrices(pair), decomposition="qr", density=1.0)[0]
        for pair in ([first, leaning], [leaning, first])
    )
    # Again Q = 1: the rows [2 | 3] and [0 | 4] give 2.5 and 4. In the other order Q = [.6 .8; .8 -.6], and the rows
    # [5 | 1.2] and [0 | 1.6] give 3.1 and 1.6.
    assert_close(one, np.array([[2.5, 0.0], [4.0, 0.0]]))
    assert_close(other, np.array([[3.1 * 0.6 + 1.6 * 0.8, 0.0], [3.1 * 0.8 - 1.6 * 0.6, 0.0]]))


@both_ways
def test_tasks_that_changed_different_rows_do_not_dilute_each_other(name: str) -> None:
    deltas = torch.zeros(2, 6, 6, dtype=torch.float64)
    deltas[0, :3, :3], deltas[1, 3:, 3:] = drawn(1, (3, 3))[0], drawn(1, (3, 3), seed=1)[0]
    assert_close(merged(name, matrices(list(deltas)), density=1.0)[0], numpy_of(deltas).sum(0), 1e-10)


@pytest.mark.parametrize(
    ("density", "kept"), [(0.0, []), (0.2, [4]), (0.4, [1, 3, 4]), (0.6, [1, 3, 4]), (0.8, [0, 1, 3, 4])]
)
def test_equal_magnitudes_are_kept_or_pruned_together(density: float, kept: list[int]) -> None:
    values = torch.tensor([1.0, 2.0, 0.5, -2.0 * (1 + 1e-12), 3.0], dtype=torch.float64)
    space = JointSpace(torch.eye(1), torch.ones(1, 1, dtype=torch.float64), values.view(1, 1, 5).clone())
    assert pruned(space, density).nonzero()[:, 2].tolist() == kept


@both_ways
def test_vectors_take_the_scaled_mean(name: str) -> None:
    deltas = [torch.tensor([1.0, 2.0]), torch.tensor([3.0, -2.0])]
    assert merged(name, vectors(deltas), scaling=0.5)[0].tolist() == [1.0, 0.0]  # type: ignore[union-attr]


def test_drm_h_by_hand() -> None:
    # One shared row direction. The joint matrix [3 4 | 0 -2 ] has U = 1, and S V_t is the row itself: the unit rows are
    # (.6, .8) and (0, -1). Half of the four entries: -1 and .8 stay; as S V_t they are 4 and -2, the sum elects +.
    deltas = [torch.tensor([[3.0, 4.0]]), torch.tensor([[0.0, -2.0]])]
    assert_close(merged("drm_h", matrices(deltas), density=0.5)[0], np.array([[0.0, 4.0]]))
    assert_close(merged("drm_h", matrices(deltas), density=0.75)[0], np.array([[3.0, 4.0]]))
    agreeing = [torch.tensor([[3.0, 4.0]]), torch.tensor([[0.0, 2.0]])]
    assert_close(merged("drm_h", matrices(agreeing), density=0.5)[0], np.array([[0.0, 3.0]]))


@both_ways
@every_number
def test_equal_tasks_are_pruned_alike_together_and_each(name: str, tasks: int) -> None:
    deltas = [drawn(1, (14, 9))[0]] * tasks
    together = merged(name, matrices(deltas), density=1 / 3)[0]  # of 81 entries of a task, or 126
    assert_close(merged(name, matrices(deltas), density=1 / 3, pruning="each")[0], numpy_of(together), 1e-9)  # type: ignore[arg-type]


def test_each_task_keeps_its_own_share() -> None:
    # The unit rows are (.6, .8) and (0, -1): half of each task's two entries are .8 and -1, half of all four the same;
    # a quarter of all is -1 alone, and of each none.
    deltas = [torch.tensor([[3.0, 4.0]]), torch.tensor([[5.0, 0.0]])]
    assert_close(merged("drm_h", matrices(deltas), density=0.5, pruning="each")[0], np.array([[5.0, 4.0]]))
    assert_close(merged("drm_h", matrices(deltas), density=0.75, pruning="each")[0], np.array([[5.0, 4.0]]))
    assert_close(merged("drm_h", matrices(deltas), density=0.75)[0], np.array([[4.0, 4.0]]))


@both_ways
def test_the_leading_joint_directions_are_those_of_the_truncated_matrices(name: str) -> None:
    deltas = drawn(3, (20, 16), torch.float32)
    exact = numpy_of(deltas if name == "drm_h" else deltas.mT)
    u, s, vh = svd(np.hstack(list(exact)))
    kept = len(s) // 4
    cut = np.stack(np.hsplit((u[:, :kept] * s[:kept]) @ vh[:kept], 3))
    steps = {"density": 1.0, "elect": False, "averaging": "sum", "rank_fraction": 0.25}
    found = numpy_of(merged(name, matrices(list(deltas)), **steps)[0])  # type: ignore[arg-type]
    assert_close(torch.from_numpy(found if name == "drm_h" else found.T), cut.sum(0), 1e-6)
