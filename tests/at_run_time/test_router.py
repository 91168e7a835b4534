"""The router against scipy's own root of its gradient, in plain float64, and the shares made of it."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from merganser.at_run_time.additions.router import Router, read_router, shares, write_router
from merganser.at_run_time.fitting import fit
from merganser.errors import InputError


def clouds(*sizes: int) -> dict[str, Tensor]:
    """Draw features around a point of each task's own."""
    generator = torch.Generator().manual_seed(0)
    return {
        f"task{t}": torch.randn(size, 3, generator=generator) * torch.tensor([1.0, 5.0, 0.1]) + 2 * t
        for t, size in enumerate(sizes)
    }


def loss(features: dict[str, Tensor], router: Router, penalty: float) -> float:
    """Compute what a router minimises, all tasks alike, by its definition."""
    rows = torch.cat(list(features.values())).double().numpy()
    weight, bias = router.weight.double().numpy(), router.bias.double().numpy()
    total = 0.0
    for number, task in enumerate(router.tasks):
        logits = features[task].double().numpy() @ weight.T + bias
        total -= np.mean(logits[:, number] - np.log(np.exp(logits).sum(axis=1))) / len(features)
    return float(total + penalty / (2 * len(rows)) * ((weight * rows.std(axis=0)) ** 2).sum())


@pytest.mark.parametrize("penalty", [1.0, 10.0])
def test_no_router_near_the_fitted_one_is_better(penalty: float) -> None:
    features = clouds(20, 30, 50)
    found = fit(features, penalty)
    best, generator = loss(features, found, penalty), torch.Generator().manual_seed(1)
    for _ in range(20):
        moved = found.weight + 0.01 * torch.randn(found.weight.shape, generator=generator)
        shifted = found.bias + 0.01 * torch.randn(found.bias.shape, generator=generator)
        assert loss(features, Router(found.tasks, moved, shifted), penalty) > best - 1e-9


def test_features_are_rated_by_the_softmax_of_the_regression() -> None:
    features = clouds(20, 30)
    found = fit(features, 1.0)
    logits = features["task0"].double() @ found.weight.double().T + found.bias.double()
    torch.testing.assert_close(found.probabilities(features["task0"]), logits.softmax(dim=1))
    right = (found.probabilities(features["task1"]).argmax(dim=1) == 1).double().mean()
    assert right > 0.9


def test_a_task_with_more_examples_is_no_likelier() -> None:
    """Repeating a task's examples changes the fit by the penalty's share alone."""
    features = clouds(40, 40)
    doubled = features | {"task0": features["task0"].repeat(4, 1)}
    one, other = fit(features, 0.0), fit(doubled, 0.0)
    same = clouds(40, 40)["task1"]
    torch.testing.assert_close(one.probabilities(same), other.probabilities(same), rtol=1e-2, atol=1e-3)


def test_one_task_takes_everything_and_a_constant_feature_does_no_harm() -> None:
    features = {"only": torch.ones(4, 3)}
    assert fit(features, 1.0).probabilities(torch.zeros(2, 3)).tolist() == [[1.0], [1.0]]


def test_shares_are_hundredths_that_add_up_to_one() -> None:
    drawn = torch.rand(50, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64).softmax(dim=1)
    found = shares(drawn)
    torch.testing.assert_close(found.sum(dim=1), torch.ones(50, dtype=torch.float64))
    assert ((found - drawn).abs() <= 0.035).all()
    torch.testing.assert_close((100 * found).round() / 100, found)


def test_a_router_is_kept_in_a_file_and_a_damaged_one_is_refused(tmp_path: Path) -> None:
    made = Router(("a", "b"), torch.ones(2, 3), torch.zeros(2))
    write_router(tmp_path, made)
    found = read_router(tmp_path)
    assert found.tasks == made.tasks
    assert torch.equal(found.weight, made.weight)
    write_router(tmp_path, Router(("a",), torch.ones(2, 3), torch.zeros(2)))
    with pytest.raises(InputError, match=r"router\.safetensors: its tensors are not of 1 tasks; merge again"):
        read_router(tmp_path)
