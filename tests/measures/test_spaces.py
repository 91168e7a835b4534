import numpy as np
import pytest
import torch
from torch import Tensor

from merganser.inputs.layers import LayerDeltas
from merganser.linalg.svd import factorise
from merganser.measures.spaces import BANDS, PRUNED, agreement_histograms, dropped_shares, vector_products
from merganser.operators.drm import JointSpace, joint_space


def drawn(tasks: int, shape: tuple[int, int]) -> Tensor:
    return torch.randn(tasks, *shape, generator=torch.Generator().manual_seed(tasks)) * torch.tensor(
        [1.0, 0.1] * (shape[1] // 2)
    )


def space_of(deltas: Tensor) -> JointSpace:
    return joint_space(LayerDeltas("layer", "matrix", tuple(f"task{t}" for t in range(len(deltas))), deltas))


@pytest.mark.parametrize("tasks", [2, 5])
def test_the_shares_dropped_of_basis_vectors_are_those_of_numpy(tasks: int) -> None:
    deltas = drawn(tasks, (10, 8))
    _, _, vh = np.linalg.svd(np.hstack(list(deltas.double().numpy())), full_matrices=False)
    rows = np.stack(np.split(vh, tasks, axis=1))
    found = dropped_shares(space_of(deltas))
    for name, each in (("plain", rows), ("renormalised", rows / np.linalg.norm(rows, axis=2, keepdims=True))):
        cut = np.sort(np.abs(each), axis=None)[::-1][int(PRUNED * each.size) - 1]
        assert np.array(found[name]) == pytest.approx((np.abs(each) < cut).mean(2), abs=0.0006)
        assert np.mean(found[name]) == pytest.approx(PRUNED, abs=0.001)


def test_without_renormalisation_vectors_of_a_small_task_are_dropped_whole_and_with_it_each_keeps_some() -> None:
    large, small = drawn(2, (8, 8))
    found = dropped_shares(space_of(torch.stack([large, 0.01 * small])))
    assert [np.mean(task) for task in found["plain"]] == pytest.approx([0.2, 0.8], abs=0.05)
    assert [np.mean(task) for task in found["renormalised"]] == pytest.approx([0.5, 0.5], abs=0.05)
    assert max(found["plain"][1]) == 1  # a whole vector is gone
    assert max(map(max, found["renormalised"])) < 0.8


def test_many_basis_vectors_are_averaged_in_bands() -> None:
    found = dropped_shares(space_of(drawn(2, (130, 130))))
    assert {len(task) for shares in found.values() for task in shares} == {BANDS}
    assert dropped_shares(space_of(torch.zeros(2, 4, 4))) == {"plain": [[], []], "renormalised": [[], []]}


@pytest.mark.parametrize(("tasks", "share", "place"), [(5, 3, 2), (10, 7, 4), (20, 12, 2), (4, 2, 0), (4, 4, 9)])
def test_a_share_at_the_edge_of_two_bins_is_in_the_upper_one(tasks: int, share: int, place: int) -> None:
    deltas = torch.where(torch.arange(tasks) < share, 1.0, -1.0).expand(3, 4, tasks).permute(2, 0, 1)
    found = agreement_histograms(space_of(deltas), deltas)["weights"]
    assert (found[place], sum(found)) == (12, 12)


def test_entries_are_counted_by_the_majoritys_share() -> None:
    deltas = torch.tensor([[[1.0, 2.0, 0.0, 1.0]], [[1.0, -1.0, 0.0, 0.0]], [[1.0, 1.0, 0.0, -2.0]]])
    found = agreement_histograms(space_of(deltas), deltas)
    assert found["weights"] == [
        1,
        0,
        0,
        1,
        0,
        0,
        0,
        0,
        0,
        1,
    ]  # one half, two of three, all; what nobody changes is left out
    assert sum(found["joint"]) == 3  # one basis vector of four entries, one of which nobody changes


@pytest.mark.parametrize("tasks", [2, 5])
def test_products_of_vectors_are_those_of_numpy(tasks: int) -> None:
    deltas = drawn(tasks, (16, 12))
    found = vector_products([factorise(delta) for delta in deltas])
    kept = min(16 // tasks, 12)
    assert found["each"] == [kept] * tasks
    factors = [np.linalg.svd(delta.double().numpy(), full_matrices=False) for delta in deltas]
    U, V = (np.hstack([f[at][:, :kept] if at == 0 else f[at].T[:, :kept] for f in factors]) for at in (0, 2))
    assert np.abs(found["u"]) == pytest.approx(np.abs(U.T @ U), abs=0.001)
    assert np.abs(found["v"]) == pytest.approx(np.abs(V.T @ V), abs=0.001)
