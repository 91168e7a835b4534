from collections.abc import Sequence

import numpy as np
import pytest
import scipy.linalg
import torch

from merganser.operators.subspaces import own_directions
from tests.laws.layers import matrices, merged, vectors
from tests.laws.references import EPSILON, Array, Given, counted, whitened
from tests.laws.spectra import assert_close, both_dtypes, drawn, every_number, every_shape, numpy_of, svd

Triples = tuple[Array, Array, Array]


def common_and_specific(deltas: Array, common_fraction: float, driver: str = "gesdd") -> list[Triples]:
    """List the common triples and each task's own as the paper prints them, on numerical ranks."""
    rank, tasks = min(deltas.shape[1:]), len(deltas)
    left = rank - counted(common_fraction, rank)
    own = round(left / tasks)  # half to even, as the authors' code does
    if own * tasks > rank:
        own = left // tasks
    summed = deltas.sum(0)
    common = cut(summed, rank - tasks * own, summed, driver)
    outside = (np.eye(len(summed)) - common[0] @ common[0].T) @ deltas
    return [common, *(cut(o, own, delta, driver) for o, delta in zip(outside, deltas, strict=True))]


def cut(matrix: Array, count: int, whole: Array, driver: str) -> Triples:
    """Truncate to a count, and to the rank that is more than rounding beside the whole it is a part of."""
    u, s, vh = scipy.linalg.svd(matrix, full_matrices=False, lapack_driver=driver)
    k = min(count, int((s > max(matrix.shape) * EPSILON * np.linalg.norm(whole, 2)).sum()))
    return u[:, :k], s[:k], vh[:k]


def iso(deltas: Array, common_fraction: float, driver: str = "gesdd") -> Array:
    """Iso-CTS: whiten the stacks of left and right vectors, and give each pair the mean value."""
    us, ss, vhs = zip(*common_and_specific(deltas, common_fraction, driver), strict=True)
    value = np.concatenate(ss).sum() / min(deltas.shape[1:])
    return value * whitened(np.hstack(us)) @ whitened(np.vstack(vhs))


def reference(layers: Sequence[Given], *, common_fraction: float, scaling: float) -> list[Array]:
    """Merge matrices; average vectors."""
    return [
        scaling * (iso(layer.deltas, common_fraction) if layer.kind == "matrix" else layer.deltas.mean(0))
        for layer in layers
    ]


CASES = [{"common_fraction": fraction} for fraction in (0.0, 0.25, 1.0)]


@every_shape
@both_dtypes
@pytest.mark.parametrize("rank", [None, 3])
@pytest.mark.parametrize("common_fraction", [0.0, 0.3, 0.8])
def test_one_task_is_merged_as_iso_c_does(
    shape: tuple[int, int], dtype: torch.dtype, rank: int | None, common_fraction: float
) -> None:
    layer = matrices(list(drawn(1, shape, dtype, rank)))
    (found,) = merged("iso_cts", layer, common_fraction=common_fraction)
    assert_close(found, numpy_of(merged("iso_c", layer)[0]))  # type: ignore[arg-type]


@every_shape
@every_number
def test_with_common_directions_only_it_is_iso_c(shape: tuple[int, int], tasks: int) -> None:
    layer = matrices(list(drawn(tasks, shape, torch.float32)))
    (found,) = merged("iso_cts", layer, common_fraction=1.0)
    assert_close(found, numpy_of(merged("iso_c", layer)[0]))  # type: ignore[arg-type]


@pytest.mark.parametrize("tasks", [2, 4])
@pytest.mark.parametrize("shape", [(20, 20), (40, 20), (20, 40)])
def test_all_singular_values_are_equal_where_the_stacks_have_full_rank(tasks: int, shape: tuple[int, int]) -> None:
    deltas = drawn(tasks, shape, torch.float32)
    (found,) = merged("iso_cts", matrices(list(deltas)))
    mean = sum(s.sum() for _, s, _ in common_and_specific(numpy_of(deltas), 0.8)) / 20
    np.testing.assert_allclose(svd(numpy_of(found))[1], mean, rtol=1e-5)  # type: ignore[arg-type]


@pytest.mark.parametrize("common_fraction", [0.0, 0.1, 0.3])
@pytest.mark.parametrize("shape", [(40, 30), (30, 40)])
def test_low_rank_deltas_are_merged_alike_by_every_lapack_driver(
    common_fraction: float, shape: tuple[int, int]
) -> None:
    """Ranks 4, 4 and 0 add up to 8 of 30: what the common part leaves is some, or none, of each task's directions."""
    deltas = torch.cat([drawn(2, shape, torch.float32, rank=4), torch.zeros(1, *shape)])
    (found,) = merged("iso_cts", matrices(list(deltas)), common_fraction=common_fraction)
    for driver in ("gesdd", "gesvd"):
        assert_close(found, iso(numpy_of(deltas), common_fraction, driver))


def test_a_common_direction_leaves_no_rounding_to_become_a_tasks_own() -> None:
    delta = drawn(1, (24, 24), torch.float32, rank=2)[0]
    layer = matrices([delta, -3 * delta])  # both lie within the span of the sum
    (found,) = merged("iso_cts", layer)
    assert_close(found, numpy_of(merged("iso_c", layer)[0]))  # type: ignore[arg-type]


def test_a_matrix_with_fewer_directions_than_tasks_has_common_ones_only() -> None:
    layer = matrices(list(drawn(4, (3, 9))))
    assert_close(merged("iso_cts", layer, scaling=0.5)[0], 0.5 * numpy_of(merged("iso_c", layer)[0]), 1e-12)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("rank", "tasks", "common_fraction", "own"),
    [
        (10, 2, 0.5, 2),  # 2.5: half to even
        (14, 2, 0.5, 4),  # 3.5
        (10, 3, 0.5, 2),  # 1.67
        (10, 8, 0.5, 1),  # 0.625: eight of ten
        (10, 8, 0.6, 0),  # 0.5
        (7, 4, 0.0, 1),  # 1.75: two each would be more than there are
    ],
)
def test_what_the_common_part_leaves_is_shared_out_as_the_authors_do(
    rank: int, tasks: int, common_fraction: float, own: int
) -> None:
    assert own_directions(rank, tasks, common_fraction) == own
    deltas = drawn(tasks, (rank, rank))
    found = common_and_specific(numpy_of(deltas), common_fraction)
    assert [len(s) for _, s, _ in found] == [rank - tasks * own, *[own] * tasks]
    assert_close(
        merged("iso_cts", matrices(list(deltas)), common_fraction=common_fraction)[0],
        iso(numpy_of(deltas), common_fraction),
    )


def test_vectors_take_the_scaled_mean() -> None:
    deltas = [torch.tensor([1.0, 2.0]), torch.tensor([3.0, -2.0])]
    assert merged("iso_cts", vectors(deltas), scaling=0.5)[0].tolist() == [1.0, 0.0]  # type: ignore[union-attr]


def test_iso_cts_by_hand() -> None:
    # The sum is 4 E11 + 3 E22 + E33 + E43: E11 and E22 are common, E33 is the first task's own and E43 the second's.
    # Their right vector e3 is the same, and gets a weight of 1 / sqrt(2) each. The mean is (4 + 3 + 1 + 1) / 4.
    deltas = torch.zeros(2, 4, 4)
    deltas[0, 0, 0], deltas[0, 2, 2], deltas[1, 1, 1], deltas[1, 3, 2] = 4.0, 1.0, 3.0, 1.0
    expected = np.diag([1.0, 1.0, 2**-0.5, 0.0])
    expected[3, 2] = 2**-0.5
    assert_close(merged("iso_cts", matrices(list(deltas)), common_fraction=0.5)[0], 9 / 4 * expected)
