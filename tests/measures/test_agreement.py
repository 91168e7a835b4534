import numpy as np
import pytest
import torch
from torch import Tensor

from merganser.inputs.layers import LayerDeltas
from merganser.measures.agreement import DENSITY, layer_agreement, sign_agreement
from merganser.operators.drm import JointSpace, joint_space


def random_deltas(count: int, shape: tuple[int, int] = (12, 10)) -> Tensor:
    return torch.randn(count, *shape, generator=torch.Generator().manual_seed(count))


def space_of(deltas: Tensor) -> JointSpace:
    return joint_space(LayerDeltas("layer", "matrix", tuple(f"task{t}" for t in range(len(deltas))), deltas))


def test_agreement_worked_by_hand() -> None:
    entries = torch.tensor([[1.0, 2, 0, 0, -3], [4.0, -1, 0, 5, -1], [1.0, 0, 0, 0, 2]])
    # all agree, half and half, no sign at all, one sign alone, two of three
    assert sign_agreement(entries) == pytest.approx((1 + 0.5 + 1 + 2 / 3) / 4)


@pytest.mark.parametrize("tasks", [1, 2, 3, 8])
def test_agreement_lies_between_one_half_and_one(tasks: int) -> None:
    deltas = random_deltas(tasks)
    for value in layer_agreement(space_of(deltas), deltas).values():
        assert 0.5 <= value <= 1


def test_opposite_tasks_agree_on_one_half_and_identical_ones_on_everything() -> None:
    delta = random_deltas(1)[0]
    opposite, identical = torch.stack([delta, -delta]), torch.stack([delta, delta, delta])
    assert set(layer_agreement(space_of(opposite), opposite).values()) == {0.5}
    assert set(layer_agreement(space_of(identical), identical).values()) == {1.0}


def test_agreement_of_nothing_is_undefined() -> None:
    nothing = torch.zeros(2, 4, 3)
    assert all(np.isnan(value) for value in layer_agreement(space_of(nothing), nothing).values())


def reference(entries: np.ndarray) -> float:
    """Average the majority's share over the positions where a task has a sign."""
    shares = []
    for position in range(entries[0].size):
        signs = [np.sign(task.flat[position]) for task in entries]
        if any(signs):
            shares.append(max(signs.count(1), signs.count(-1)) / (signs.count(1) + signs.count(-1)))
    return float(np.mean(shares))


def test_both_spaces_equal_their_definitions() -> None:
    deltas = random_deltas(3)
    found = layer_agreement(space_of(deltas), deltas)
    D = deltas.double().numpy()
    u, s, vh = np.linalg.svd(np.hstack(list(D)), full_matrices=False)
    rows = np.stack(np.split(vh, 3, axis=1))
    unit = rows / np.linalg.norm(rows, axis=2, keepdims=True)
    threshold = np.sort(np.abs(unit), axis=None)[-int(DENSITY * unit.size)]
    cut = np.where(np.abs(unit) >= threshold, unit, 0)
    back = np.stack([(u * s) @ (np.linalg.norm(r, axis=1, keepdims=True) * c) for r, c in zip(rows, cut, strict=True)])
    trimmed = [np.where(np.abs(d) >= np.sort(np.abs(d), axis=None)[-int(DENSITY * d.size)], d, 0) for d in D]
    assert found["weights"] == pytest.approx(reference(D))
    assert found["weights_pruned"] == pytest.approx(reference(np.stack(trimmed)))
    assert found["joint"] == pytest.approx(reference(unit))
    assert found["joint_pruned"] == pytest.approx(reference(cut))
    assert found["joint_pruned_back"] == pytest.approx(reference(back))
