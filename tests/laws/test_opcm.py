from collections.abc import Sequence

import numpy as np
import pytest
import torch

from tests.laws.layers import matrices, merged
from tests.laws.references import Array, Given, flat, svd
from tests.laws.samples import joined, merged_vector, network
from tests.laws.spectra import assert_close


def reference(layers: Sequence[Given], *, eta: float, scaling: float) -> list[Array]:
    """Merge the tasks one after another; keep the whole vector's mean length at each."""
    lengths = np.linalg.norm(flat(layers), axis=1)
    so_far, factor = [layer.deltas[0] for layer in layers], 1.0
    for task in range(1, len(lengths)):
        so_far = [
            factor * merged
            + (beside(layer.deltas[task], merged, eta) if layer.kind == "matrix" else layer.deltas[task])
            for layer, merged in zip(layers, so_far, strict=True)
        ]
        length = np.sqrt(sum(np.linalg.norm(each) ** 2 for each in so_far))
        factor = length / lengths[: task + 1].mean() or 1.0
        so_far = [each / factor for each in so_far]
    return [scaling * each for each in so_far]


def beside(delta: Array, merged: Array, eta: float) -> Array:
    """Take out of a delta what it has in a merge's leading directions, and along each other one."""
    u, s, vh = svd(merged)
    leading = int((np.cumsum(s) <= eta * (1 + 1e-12) * s.sum()).sum())
    rest = delta - u[:, :leading] @ u[:, :leading].T @ delta @ vh[:leading].T @ vh[:leading]
    for left, right in zip(u.T[leading:], vh[leading:], strict=True):
        rest = rest - left @ delta @ right * np.outer(left, right)
    return rest


CASES = [{"eta": 0.0}, {"eta": 1.0}]


def test_one_task_is_its_own_model() -> None:
    layers = network(1)
    assert torch.equal(merged_vector("opcm", layers), joined(layers)[0])


@pytest.mark.parametrize("tasks", [2, 5])
def test_the_merge_is_as_long_as_the_task_vectors_are_on_average(tasks: int) -> None:
    layers = network(tasks)
    found = float(merged_vector("opcm", layers).norm())
    assert found == pytest.approx(float(joined(layers).norm(dim=1).mean()), rel=1e-5)


def test_opcm_by_hand() -> None:
    # The first task has directions 3 and 1, of which the first holds three quarters. At a share of a half none leads:
    # the second task loses its diagonal. At 0.8 the first leads, and what it has beside both is the same.
    first, second = torch.diag(torch.tensor([3.0, 1.0])), torch.tensor([[5.0, 2.0], [4.0, 7.0]])
    whole = np.array([[3.0, 2.0], [4.0, 1.0]])
    length = (np.sqrt(10) + np.sqrt(94)) / 2
    for eta in (0.5, 0.8):
        assert_close(merged("opcm", matrices([first, second]), eta=eta)[0], whole * length / np.linalg.norm(whole))
    # With both leading, the second task has nothing beside them.
    assert_close(merged("opcm", matrices([first, second]), eta=1.0)[0], np.diag([3.0, 1.0]) * length / np.sqrt(10))


def test_the_order_of_the_tasks_matters() -> None:
    layer = matrices([torch.diag(torch.tensor([3.0, 1.0])), torch.tensor([[5.0, 2.0], [4.0, 7.0]])])
    turned = matrices(list(layer.deltas.flip(0)))
    assert not torch.allclose(merged("opcm", layer)[0], merged("opcm", turned)[0])  # type: ignore[arg-type]
