"""The strengths of all tasks' features together: by steps in float32 where that is exact, by a Cholesky factor else."""

import numpy as np
import pytest
import torch
from torch import Tensor

from merganser.linalg.decompositions import Factors
from merganser.linalg.svd import compact
from merganser.methods import sftm
from merganser.methods.sftm import RIDGE, strengths
from tests.laws.layers import matrices, merged
from tests.laws.spectra import assert_close, drawn, numpy_of
from tests.laws.test_sftm import superposition as printed


def in_dtype(deltas: Tensor, dtype: torch.dtype) -> list[Factors]:
    """Decompose each task's delta and keep that in a dtype."""
    return [Factors(*(part.to(dtype) for part in compact(delta))) for delta in deltas]


def merged_by(features: list[Factors], found: tuple[Tensor, ...]) -> Tensor:
    """Add up the features in float64."""
    parts = [(each.u.double() * own) @ each.vh.double() for each, own in zip(features, found, strict=True)]
    return torch.stack(parts).sum(0)


@pytest.mark.parametrize("ranks", [[5], [4, 3], [6, 0, 2, 6]])
def test_the_strengths_solve_the_whole_system(ranks: list[int]) -> None:
    deltas = [drawn(1, (12, 9), rank=rank, seed=seed)[0] for seed, rank in enumerate(ranks)]
    features = [compact(delta, exact_to=torch.float32) for delta in deltas]
    u, v = torch.cat([each.u for each in features], 1), torch.cat([each.vh for each in features]).mT
    system = (u.mT @ u) * (v.mT @ v) + RIDGE * torch.eye(sum(ranks))
    found = torch.cat(strengths(features) or ())
    torch.testing.assert_close(system @ found, torch.cat([each.s for each in features]), rtol=0, atol=1e-12)


@pytest.mark.parametrize(("shape", "tasks"), [((40, 30), 8), ((30, 40), 2), ((60, 7), 3)])
def test_float32_is_enough_for_tasks_that_share_little(shape: tuple[int, int], tasks: int) -> None:
    deltas = drawn(tasks, shape, torch.float32)
    features = in_dtype(deltas, torch.float32)
    found, exact = (strengths(in_dtype(deltas, dtype)) for dtype in (torch.float32, torch.float64))
    assert found is not None
    assert exact is not None
    assert_close(merged_by(features, found), numpy_of(merged_by(features, exact)), 2e-6)


@pytest.mark.parametrize("apart", [0.0, 1e-5, 1e-3])
def test_tasks_that_are_nearly_the_same_need_float64(apart: float) -> None:
    deltas = drawn(1, (20, 12), torch.float32) + apart * drawn(3, (20, 12), torch.float32, seed=1)
    assert strengths(in_dtype(deltas, torch.float32)) is None
    found = merged("sftm", matrices(list(deltas)), density=1.0, scaling=1.0)[0]
    assert_close(found, printed(numpy_of(deltas), 1.0))


@pytest.mark.parametrize("common", [0.01, 0.1, 0.5, 1.0, 3.0])
def test_sftm_is_exact_however_much_tasks_share(common: float) -> None:
    shared = common * drawn(1, (24, 18), torch.float32, rank=3)
    deltas = shared + drawn(4, (24, 18), torch.float32, seed=1)
    found = merged("sftm", matrices(list(deltas)), density=0.4, scaling=1.0)[0]
    assert_close(found, printed(numpy_of(deltas), 0.4))


@pytest.mark.parametrize("smallest", [1e-2, 1e-4, 1e-6])
def test_sftm_is_exact_for_ill_conditioned_tasks(smallest: float) -> None:
    scales = torch.logspace(0, float(np.log10(smallest)), 16).unsqueeze(1)
    deltas = scales * drawn(3, (16, 20), torch.float32)
    found = merged("sftm", matrices(list(deltas)), density=1.0, scaling=1.0)[0]
    assert_close(found, printed(numpy_of(deltas), 1.0))


def test_both_ways_give_the_same_where_both_are_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = matrices(list(drawn(5, (30, 22), torch.float32)))
    by_steps = merged("sftm", layer)[0]
    monkeypatch.setattr(sftm, "STEPS", 0)
    assert_close(by_steps, numpy_of(merged("sftm", layer)[0]), 2e-6)  # type: ignore[arg-type]
