from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import pytest
import scipy.linalg
import torch

from merganser.errors import InputError
from merganser.linalg.decompositions import Factors
from tests.laws.layers import merged, task_names, vectors
from tests.laws.references import Array, Given, counted, whitened
from tests.laws.references import svd as known
from tests.laws.spectra import (
    LayerFactors,
    assert_close,
    both_dtypes,
    cut,
    decomposed,
    drawn,
    every_number,
    every_shape,
    numpy_of,
    svd,
)


def rooted(stack: Array) -> Array:
    """Return X (X^T X)^-1/2 by eigenvalues, as TSV's appendix D.2.1 prints it."""
    if len(stack) < stack.shape[1]:
        return rooted(stack.T).T
    eigenvalues, q = np.linalg.eigh(stack.T @ stack)
    return stack @ q @ np.diag(1 / np.sqrt(np.abs(eigenvalues) + 1e-12)) @ q.T


def tsv_merge(deltas: Array, k: int, white: Callable[[Array], Array] = whitened) -> Array:
    """TSV-Merge as Algorithm 1 prints it, on numerical ranks."""
    svds = [known(delta) for delta in deltas]
    u = white(np.hstack([u[:, :k] for u, _, _ in svds]))
    vh = white(np.vstack([vh[:k] for _, _, vh in svds]))
    return u * np.concatenate([s[:k] for _, s, _ in svds]) @ vh


def added(deltas: Array, k: int) -> Array:
    """Add the truncated deltas as they are."""
    return np.sum([cut(delta, k) for delta in deltas], axis=0)


CASES = [{"orthogonalise": False, "rank_fraction": 1.0}]


def reference(
    layers: Sequence[Given], *, rank_fraction: float | None, scaling: float, orthogonalise: bool, whitening: str
) -> list[Array]:
    """Whiten what each task keeps of its matrix; average vectors, and matrices with less than a component a task."""
    white = partial(tsv_merge, white=whitened if whitening == "procrustes" else rooted)
    merged, merge = [], white if orthogonalise else added
    for layer in layers:
        share = 1 / len(layer.tasks) if rank_fraction is None else rank_fraction
        k = counted(share, min(layer.deltas.shape[1:])) if layer.kind == "matrix" else 0
        merged.append(scaling * (merge(layer.deltas, k) if k else layer.deltas.mean(0)))
    return merged


@every_shape
@every_number
@both_dtypes
def test_full_rank_without_whitening_is_task_arithmetic(shape: tuple[int, int], tasks: int, dtype: torch.dtype) -> None:
    deltas = drawn(tasks, shape, dtype)
    (found,) = merged("tsv_m", decomposed(deltas), rank_fraction=1, orthogonalise=False, scaling=0.3)
    assert_close(found, 0.3 * numpy_of(deltas).sum(0), 1e-12 if dtype == torch.float64 else 1e-6)


@pytest.mark.parametrize("tasks", [2, 4])
@both_dtypes
def test_tsv_m_of_a_real_layers_size_is_exact_to_five_digits(tasks: int, dtype: torch.dtype) -> None:
    deltas = drawn(tasks, (120, 80), dtype) + drawn(1, (120, 80), dtype, seed=1)  # related tasks
    assert_close(merged("tsv_m", decomposed(deltas))[0], tsv_merge(numpy_of(deltas), 80 // tasks))


@every_shape
@pytest.mark.parametrize("tasks", [1, 2, 4])
def test_whitening_by_eigenvalues_is_procrustes_up_to_rounding(shape: tuple[int, int], tasks: int) -> None:
    layer = decomposed(drawn(tasks, shape) + drawn(1, shape, seed=1))
    (procrustes,) = merged("tsv_m", layer)
    assert_close(merged("tsv_m", layer, whitening="eigenvalues")[0], numpy_of(procrustes), 1e-8)  # type: ignore[arg-type]


@every_shape
def test_one_task_is_kept_whole(shape: tuple[int, int]) -> None:
    deltas = drawn(1, shape)
    assert_close(merged("tsv_m", decomposed(deltas))[0], numpy_of(deltas)[0], 1e-12)


def test_the_merged_singular_values_are_exactly_the_kept_ones() -> None:
    deltas = drawn(4, (20, 30))
    (found,) = merged("tsv_m", decomposed(deltas))
    kept = np.concatenate([svd(delta)[1][:5] for delta in numpy_of(deltas)])
    np.testing.assert_allclose(svd(numpy_of(found))[1], np.sort(kept)[::-1], rtol=1e-10)  # type: ignore[arg-type]


def test_orthogonal_tasks_add_up() -> None:
    deltas = torch.zeros(3, 12, 15, dtype=torch.float64)
    for t in range(3):
        deltas[t, 4 * t : 4 * t + 4, 5 * t : 5 * t + 5] = drawn(1, (4, 5), seed=t)[0]
    assert_close(merged("tsv_m", decomposed(deltas))[0], numpy_of(deltas).sum(0), 1e-10)


@both_dtypes
def test_identical_tasks_give_the_truncated_delta(dtype: torch.dtype) -> None:
    delta = drawn(1, (20, 14), dtype)
    assert_close(merged("tsv_m", decomposed(delta.repeat(3, 1, 1)))[0], cut(numpy_of(delta)[0], 14 // 3))


@pytest.mark.parametrize("drivers", [("gesdd", "gesvd"), ("gesvd", "gesdd")])
def test_two_lapack_drivers_agree_on_low_rank_deltas(drivers: tuple[str, str]) -> None:
    deltas = torch.cat([drawn(3, (40, 30), torch.float32, rank=4), torch.zeros(1, 40, 30)])

    def by(driver: str) -> LayerFactors:
        svds = (scipy.linalg.svd(d.numpy(), full_matrices=False, lapack_driver=driver) for d in deltas)
        return LayerFactors("w", task_names(list(deltas)), tuple(Factors(*map(torch.from_numpy, f)) for f in svds))

    first, second = (merged("tsv_m", by(driver))[0] for driver in drivers)
    assert_close(first, numpy_of(second), 1e-5)  # type: ignore[arg-type]
    assert_close(merged("tsv_m", decomposed(deltas))[0], numpy_of(first), 1e-5)  # type: ignore[arg-type]


def test_the_signs_of_singular_vectors_do_not_matter() -> None:
    layer = decomposed(drawn(3, (12, 10)))
    flips = torch.tensor([1.0, -1.0] * 5, dtype=torch.float64)
    flipped = tuple(Factors(u * flips, s, vh * flips.unsqueeze(1)) for u, s, vh in layer.factors)
    found = merged("tsv_m", LayerFactors("w", layer.tasks, flipped))[0]
    assert_close(found, numpy_of(merged("tsv_m", layer)[0]), 1e-12)  # type: ignore[arg-type]


@pytest.mark.parametrize(("rank_fraction", "k"), [(0.3, 3), (0.5, 5), (1.0, 10)])
def test_the_rank_fraction_is_the_share_each_task_keeps(rank_fraction: float, k: int) -> None:
    deltas = drawn(2, (12, 10))
    (found,) = merged("tsv_m", decomposed(deltas), rank_fraction=rank_fraction)
    assert_close(found, tsv_merge(numpy_of(deltas), k))


def test_factors_cut_to_a_t_th_are_enough_and_fewer_are_refused() -> None:
    deltas = drawn(4, (16, 16))
    assert_close(merged("tsv_m", decomposed(deltas, 4))[0], tsv_merge(numpy_of(deltas), 4))
    with pytest.raises(InputError, match=r"decompose.rank_fraction is too small"):
        merged("tsv_m", decomposed(deltas, 3))


def test_vectors_take_the_scaled_mean() -> None:
    deltas = [torch.tensor([1.0, 2.0]), torch.tensor([3.0, -2.0])]
    assert merged("tsv_m", vectors(deltas), scaling=0.5)[0].tolist() == [1.0, 0.0]  # type: ignore[union-attr]


def test_tsv_m_by_hand() -> None:
    # k = 1: the tasks keep 4 e1 e1^T and 3 e2 e1^T. The left vectors are orthogonal already; the right ones are the
    # same, and share the direction e1 with weight 1 / sqrt(2) each.
    deltas = torch.tensor([[[4.0, 0.0], [0.0, 1.0]], [[0.0, 2.0], [3.0, 0.0]]], dtype=torch.float64)
    expected = np.array([[4.0, 0.0], [3.0, 0.0]]) / 2**0.5
    assert_close(merged("tsv_m", decomposed(deltas))[0], expected, 1e-12)
