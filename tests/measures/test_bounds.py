"""Both sides of each bound are the papers' formulas in plain float64, and each is tight or broken where it must be."""

from collections.abc import Sequence
from math import sqrt

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from merganser.linalg.svd import factorise
from merganser.measures import bounds
from merganser.measures.bounds import Bound

Array = NDArray[np.float64]
SHAPES = [(12, 8), (8, 12), (8, 8)]


def drawn(tasks: int, shape: tuple[int, int], seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(tasks, *shape, generator=generator)


def names(count: int) -> list[str]:
    return [f"task{number}" for number in range(count)]


def given(bound: Bound | None) -> Bound:
    assert bound is not None
    return bound


def norm(matrix: Array) -> float:
    return float(np.linalg.norm(matrix, 2))


def drm_sides(deltas: Array) -> list[tuple[float, float]]:
    """Proposition 2 for every task and singular value: [D_1 .. D_k] side by side."""
    k, sides = len(deltas), []
    joint = np.linalg.svd(np.hstack(list(deltas)), compute_uv=False)
    for A in deltas:
        sigma = np.linalg.svd(A, compute_uv=False)
        moved = sum(2 * norm(A) * norm(D - A) + norm(D - A) ** 2 for D in deltas)
        sides += [(abs(joint[i] - sqrt(k) * sigma[i]), moved / (sqrt(k) * sigma[i])) for i in range(len(sigma))]
    return sides


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("tasks", [1, 2, 5])
def test_drms_proposition_has_the_papers_two_sides_and_holds(tasks: int, shape: tuple[int, int]) -> None:
    deltas = drawn(tasks, shape) + drawn(1, shape, 9)
    found = bounds.drm(names(tasks), deltas, [factorise(delta) for delta in deltas])
    exact = deltas.double().numpy()
    for name, matrices in (("drm_h", exact), ("drm_v", exact.transpose(0, 2, 1))):
        bound = given(found[name])
        assert bound.holds
        if tasks == 1:
            assert bound.ratio == 0
            continue
        left, right = max(drm_sides(matrices), key=lambda sides: sides[0] / sides[1])
        assert (bound.left, bound.right) == pytest.approx((left, right), rel=1e-5)


def test_drms_proposition_is_an_equality_of_nothing_for_equal_tasks_and_no_other_factor_would_do() -> None:
    same = drawn(1, (8, 6)).repeat(4, 1, 1)
    bound = given(bounds.drm(names(4), same, [factorise(delta) for delta in same])["drm_h"])
    assert bound.right == 0
    assert bound.holds
    assert bound.left < 1e-5  # that is sqrt(4) sigma_i: a T or a 1 in its place leaves a whole sigma_i
    assert bounds.spectrum_beside(same)[:6].tolist() == pytest.approx((2 * factorise(same[0]).s).tolist(), rel=1e-5)


def test_drms_proposition_leaves_a_task_without_a_delta_out() -> None:
    deltas = torch.stack([drawn(1, (6, 6))[0], torch.zeros(6, 6)])
    bound = given(bounds.drm(names(2), deltas, [factorise(delta) for delta in deltas])["drm_h"])
    assert bound.at.startswith("task0")
    assert bounds.drm(names(2), 0 * deltas, [factorise(0 * delta) for delta in deltas])["drm_h"] is None


def polar(matrix: Array) -> Array:
    p, _, qh = np.linalg.svd(matrix, full_matrices=False)
    return np.asarray(p @ qh)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("tasks", [5, 8])
def test_tsvs_theorem_has_the_papers_two_sides_and_holds(tasks: int, shape: tuple[int, int]) -> None:
    size = min(shape)
    deltas = drawn(tasks, (4 * shape[0], 4 * shape[1]))
    found = given(bounds.tsv(deltas.shape[1:], [factorise(delta) for delta in deltas]))
    most = int(4 * size * (tasks - 2 * sqrt(tasks)) / tasks)
    kept = min(4 * size // tasks, most)
    assert found.at.endswith(f"k = {kept}")
    assert found.claimed
    assert found.holds
    factors = [np.linalg.svd(delta.double().numpy()) for delta in deltas]
    lefts, rights = [], []
    for number, square in ((0, shape[0] <= shape[1]), (2, shape[1] <= shape[0])):
        if square:
            vectors = [f[number] if number == 0 else f[number].T for f in factors]
            cut, whole = np.hstack([each[:, :kept] for each in vectors]), np.hstack(vectors)
            lefts.append(np.linalg.norm(cut - polar(cut)))
            rights.append(np.linalg.norm(whole - polar(whole)))
    assert found.left == pytest.approx(max(lefts), rel=1e-5)
    assert [found.right] * len(rights) == pytest.approx(rights)


def test_tsvs_theorem_of_equal_tasks_is_the_root_of_the_share_of_the_rank_that_is_kept() -> None:
    same = drawn(1, (16, 16)).repeat(8, 1, 1)
    bound = given(bounds.tsv((16, 16), [factorise(delta) for delta in same]))
    assert bound.left == pytest.approx(sqrt(2) * (sqrt(8) - 1), rel=1e-5)  # two vectors of 16, in each task
    assert bound.ratio == pytest.approx(sqrt(2 / 16), rel=1e-5)


@pytest.mark.parametrize("tasks", [1, 2, 4])
def test_tsvs_theorem_claims_nothing_of_four_tasks_or_fewer(tasks: int) -> None:
    deltas = drawn(tasks, (16, 16))
    assert not given(bounds.tsv((16, 16), [factorise(delta) for delta in deltas])).claimed


def test_tsvs_theorem_needs_a_vector_of_each_task() -> None:
    assert bounds.tsv((1, 9), [factorise(delta) for delta in drawn(2, (1, 9))]) is None


def star_sides(A: Array, B: Array) -> tuple[float, float]:
    """||B x|| and r_B beta sqrt(r_A), for the part in A's row space of B's first right singular vector."""
    (_, s_a, vh_a), (_, s_b, vh_b) = (np.linalg.svd(each, full_matrices=False) for each in (A, B))
    r_a, r_b = ((s > 1e-6 * s[0]).sum() for s in (s_a, s_b))
    alpha = vh_a[:r_a] @ vh_b[0]
    beta = np.abs(np.outer(s_b[:r_b], alpha)).max()
    return float(np.linalg.norm(B @ (vh_a[:r_a].T @ alpha))), float(r_b * beta * sqrt(r_a))


def truncated(matrix: Array) -> Array:
    u, s, vh = np.linalg.svd(matrix, full_matrices=False)
    k = int((np.cumsum(s) < 0.4 * s.sum()).sum()) + 1
    return np.asarray(u[:, :k] * s[:k] @ vh[:k] * s.sum() / s[:k].sum())


@pytest.mark.parametrize("shape", SHAPES)
def test_stars_bound_has_the_surveys_two_sides_and_holds(shape: tuple[int, int]) -> None:
    deltas = drawn(3, shape)
    found = bounds.star(names(3), [factorise(delta) for delta in deltas])
    whole = list(deltas.double().numpy())
    for name, matrices in (("star", whole), ("star_truncated", [truncated(each) for each in whole])):
        pairs = [star_sides(a, b) for i, a in enumerate(matrices) for j, b in enumerate(matrices) if i != j]
        bound = given(found[name])
        sides = max(pairs, key=lambda sides: sides[0] / sides[1])
        assert (bound.left, bound.right) == pytest.approx(sides, rel=1e-5)
        assert bound.holds


def test_stars_bound_is_an_equality_for_equal_tasks_of_rank_one_and_no_smaller_factor_would_do() -> None:
    same = (drawn(1, (8, 1)) @ drawn(1, (1, 6), 1)).repeat(2, 1, 1)
    for bound in bounds.star(names(2), [factorise(delta) for delta in same]).values():
        assert given(bound).ratio == pytest.approx(1, rel=1e-5)
        assert given(bound).holds


def chain(tau: Array) -> dict[str, Array]:
    """The survey's squared distances of each task, entry by entry, with the printed rescaler and the nearest one."""
    gamma = np.sign(tau.sum(0))
    unified = gamma * np.where(np.sign(tau) == gamma, np.abs(tau), 0).max(0)
    v = (tau * unified > 0) * unified
    printed = np.abs(tau).sum(1) / np.abs(v).sum(1)
    nearest = (tau * v).sum(1) / (v**2).sum(1)
    distance = {
        "elected": unified,
        "masks": v,
        "magnitude": printed[:, None] * v,
        "least_squares": nearest[:, None] * v,
    }
    return {name: ((tau - of) ** 2).sum(1) for name, of in distance.items()}


@pytest.mark.parametrize("tasks", [2, 5])
def test_emrs_chain_has_the_surveys_distances_over_all_layers(tasks: int) -> None:
    layers = [drawn(tasks, (6, 4)), drawn(tasks, (9, 3), 1)]
    whole = bounds.emr_distances(layers[0]).plus(bounds.emr_distances(layers[1]))
    expected = chain(torch.cat([layer.flatten(1) for layer in layers], 1).double().numpy())
    assert whole.elected.tolist() == pytest.approx(expected["elected"].tolist())
    assert whole.rescaled(1.0).tolist() == pytest.approx(expected["masks"].tolist())
    found = bounds.emr(names(tasks), whole, whole)
    for name, before in (("masks", "elected"), ("magnitude", "masks"), ("least_squares", "masks")):
        bound, place = given(found[f"emr_{name}"]), int((expected[name] / expected[before]).argmax())
        assert (bound.left, bound.right) == pytest.approx((expected[name][place], expected[before][place]))
        assert bound.at == f"task{place}"
    assert given(found["emr_masks"]).holds
    assert given(found["emr_least_squares"]).holds


def test_emrs_printed_rescaler_takes_a_task_away_where_most_of_it_is_outvoted() -> None:
    deltas = torch.tensor([[1.0, -1.0, -1.0, -1.0], [1.0, 2.0, 2.0, 2.0]])  # the mask leaves the first task one entry
    whole = bounds.emr_distances(deltas)
    found = bounds.emr(names(2), whole, whole)
    broken = given(found["emr_magnitude"])
    assert (broken.at, broken.left, broken.right) == ("task0", 12.0, 3.0)  # rescaled by 4: 3 squared, and 3 entries
    assert not broken.holds
    assert given(found["emr_least_squares"]).holds


def test_emrs_second_step_is_claimed_of_the_whole_vector_alone() -> None:
    layers = [bounds.emr_distances(drawn(3, (4, 4), seed)) for seed in (0, 1)]
    found = bounds.emr(names(3), layers[0], layers[0].plus(layers[1]))
    assert [given(bound).claimed for bound in found.values()] == [True, False, False]


def test_a_bound_that_rounding_alone_breaks_holds_and_a_real_one_does_not() -> None:
    assert Bound(1e-8, 0.0, "here", 1.0).holds
    assert not Bound(1e-3, 0.0, "here", 1.0).holds
    assert Bound(1e-3, 0.0, "here", 1.0).as_json()["ratio"] is None


def test_the_nearest_bound_is_that_of_the_largest_ratio() -> None:
    few: Sequence[Bound] = [Bound(1.0, 2.0, "a"), Bound(3.0, 4.0, "b"), Bound(5.0, 9.0, "c")]
    assert given(bounds.nearest(few)).at == "b"
    assert bounds.nearest([]) is None
