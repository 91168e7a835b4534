"""The decomposition of all tasks' matrices side by side."""

import numpy as np
import pytest
import torch
from torch import Tensor

from merganser.linalg.joint import JointFactors, joint, joint_low_rank
from tests.linalg.test_svd import SHAPES, adapter, assert_orthonormal, low_rank_plus_noise, with_spectrum


def stacked(space: JointFactors, tasks: int) -> Tensor:
    """Put the tasks' coordinates side by side: S [V_1^T .. V_T^T]."""
    return torch.cat([space.coordinates(task) for task in range(tasks)], 1)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("tasks", [1, 2, 8])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_joint_decomposition_gives_each_task_back(shape: tuple[int, int], tasks: int, dtype: torch.dtype) -> None:
    deltas = torch.stack([low_rank_plus_noise(shape, seed) for seed in range(tasks)]).to(dtype)
    space = joint(deltas)
    assert_orthonormal(space.u)
    assert_orthonormal(stacked(space, tasks).mT / space.s)
    for task, delta in enumerate(deltas):
        assert (space.u @ space.coordinates(task) - delta).norm() <= 1e-6 * delta.norm()
    exact = np.linalg.svd(np.hstack(list(deltas.double().numpy())), compute_uv=False)
    np.testing.assert_allclose(space.s.numpy(), exact[: len(space.s)], atol=1e-7 * exact[0])


def test_the_joint_rank_of_low_rank_tasks_is_the_sum_of_their_ranks() -> None:
    deltas = torch.stack([with_spectrum(torch.tensor([1.0, 0.3]), (40, 30), seed) for seed in range(4)])
    assert len(joint(deltas).s) == 8
    assert len(joint(deltas[:1].repeat(4, 1, 1)).s) == 2


@pytest.mark.parametrize("smallest", [1e-2, 2e-4, 2e-5])
def test_the_coordinates_of_an_ill_conditioned_layer_are_exact(smallest: float) -> None:
    spectrum = torch.logspace(0, float(np.log10(smallest)), 20)
    deltas = with_spectrum(spectrum, (20, 60)).unflatten(1, (3, 20)).transpose(0, 1)
    space = joint(deltas)
    u, _, vh = np.linalg.svd(np.hstack(list(deltas.double().numpy())), full_matrices=False)
    found = stacked(space, 3) / space.s.unsqueeze(1)
    signs = torch.from_numpy(np.sign((u * space.u.numpy()).sum(0))).unsqueeze(1)
    assert len(space.s) == 20
    assert float((found * signs - torch.from_numpy(vh)).abs().max()) <= 1e-7


def test_adapters_decompose_jointly_as_their_products_do() -> None:
    left, right = zip(*(adapter((40, 30), rank, seed) for seed, rank in enumerate([2, 0, 7])), strict=True)
    products = torch.stack([a.double() @ b.double() for a, b in zip(left, right, strict=True)])
    space = joint_low_rank(left, right)
    assert space.u.shape == (40, 9)
    for task, product in enumerate(products):
        assert (space.u @ space.coordinates(task) - product).norm() <= 1e-12 * products.norm()
