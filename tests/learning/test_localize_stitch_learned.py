"""The laws of learned regions in float64, against torch's own gradients of the relaxed objective."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from merganser.learning import Values
from merganser.learning.batches import Batches
from merganser.learning.loop import Learnable, Loss, joint_problem, per_task_problem
from merganser.methods.localize_stitch_learned import Regions, Settings
from tests.laws.layers import Layers
from tests.laws.samples import assert_same, joined, merged_vector, network
from tests.learning.derivatives import STEP, as_function, smooth_loss
from tests.learning.test_loop import base_of, loss_of

LAYERS = [replace(layer, deltas=layer.deltas.double()) for layer in network(3)]
ALONE = [replace(layer, deltas=layer.deltas.double()) for layer in network(1)]
COUNT = joined(ALONE).shape[1]


def bound(layers: Sequence[Any] = LAYERS, **settings: Any) -> Regions:
    return Regions(Layers(layers), Settings(**settings))


def stitched(on: Sequence[bool]) -> Tensor:
    """Merge with all entries of some tasks on, and all of the others off."""
    signs = torch.tensor(on).double() * 2 - 1
    values = {x.name: signs.view(-1, *[1] * (x.deltas.dim() - 1)).expand(x.deltas.shape) for x in LAYERS}
    return torch.cat([each.flatten() for each in map(bound().form(values), LAYERS)])


def test_with_all_entries_on_it_is_the_average() -> None:
    torch.testing.assert_close(stitched([True] * 3), joined(LAYERS).mean(0))


@pytest.mark.parametrize("task", range(3))
def test_with_only_one_tasks_entries_on_it_is_that_tasks_model(task: int) -> None:
    assert torch.equal(stitched([number == task for number in range(3)]), joined(LAYERS)[task])


def test_with_all_entries_off_it_is_the_base() -> None:
    assert not stitched([False] * 3).any()


def test_an_entry_is_shared_by_the_tasks_that_keep_it() -> None:
    torch.testing.assert_close(stitched([True, False, True]), joined(LAYERS)[[0, 2]].mean(0))


@pytest.mark.parametrize("density", [0.01, 0.3, 1.0])
def test_before_the_first_step_it_is_what_is_stitched_without_data(density: float) -> None:
    form = bound(network(3), density=density)
    found = torch.cat([each.double().flatten() for each in map(form.form(form.start()), network(3))])
    assert_same(found, merged_vector("localize_stitch", network(3), density=density))


def drawn(scale: float = 2.0) -> Values:
    generator = torch.Generator().manual_seed(0)
    return {x.name: scale * torch.randn(x.deltas.shape, generator=generator, dtype=torch.float64) for x in ALONE}


def test_a_step_takes_the_soft_masks_and_the_merge_the_hard_ones() -> None:
    values, form = drawn(), bound(ALONE)
    for layer, soft, hard in zip(
        ALONE, map(form.form(values, STEP), ALONE), map(form.form(values), ALONE), strict=True
    ):
        torch.testing.assert_close(soft, (values[layer.name].sigmoid() * layer.deltas)[0])
        assert torch.equal(hard, torch.where(values[layer.name] > 0, layer.deltas, 0)[0])


def objective(values: Values, penalty: float) -> Tensor:
    """Write down the relaxed objective: the loss under soft masks, and the penalty on their L1 norm."""
    merged = {x.name: (values[x.name].sigmoid() * x.deltas)[0] for x in ALONE}
    norm = sum((value.sigmoid().sum() for value in values.values()), torch.zeros(()))
    return smooth_loss(merged) + penalty / COUNT * norm


@pytest.mark.parametrize("penalty", [0.0, 40.0])
def test_the_gradient_is_torchs_own_of_the_relaxed_objective(penalty: float) -> None:
    leaves = {name: value.requires_grad_() for name, value in drawn().items()}
    expected = torch.autograd.grad(objective(leaves, penalty), list(leaves.values()))
    values, form = {name: leaf.detach() for name, leaf in leaves.items()}, bound(ALONE, penalty=penalty)
    merged = {x.name: d.requires_grad_() for x, d in zip(ALONE, map(form.form(values, STEP), ALONE), strict=True)}
    loss = smooth_loss(merged)
    gradients = dict(zip(merged, torch.autograd.grad(loss, list(merged.values())), strict=True))
    for (name, found), wanted in zip(form.pull(values, STEP, gradients).items(), expected, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-12, msg=name)
    assert float(loss.detach()) + form.penalty(values, STEP) == pytest.approx(float(objective(values, penalty)))


def test_form_and_pull_are_a_function_and_its_derivative() -> None:
    names = ["bias", "scalar", "positions", "one_row"]
    formed = as_function(bound(ALONE, penalty=0.0), Layers(ALONE), names, drawn())
    assert torch.autograd.gradcheck(formed, [drawn()[name].requires_grad_() for name in names])


def test_the_penalty_is_of_the_share_that_is_kept() -> None:
    values = {x.name: torch.ones(x.deltas.shape) for x in ALONE} | {"square": -torch.ones(1, 6, 6)}
    assert bound(ALONE, penalty=3.0).penalty(values, None) == pytest.approx(3 * (1 - 36 / COUNT))


def problem(tmp_path: Any, tasks: Sequence[int]) -> Learnable:
    """Open the problem of some of two tasks, whose losses are how far they are from their own models."""
    whole = network(2)
    layers = Layers([replace(x, tasks=tuple(x.tasks[t] for t in tasks), deltas=x.deltas[list(tasks)]) for x in whole])
    losses: list[Loss] = [loss_of(task) for task in tasks]
    batches = [Batches(0, task, "validation", 9, 2) for task in layers.tasks]
    form = Regions(layers, Settings(density=0.3))
    return joint_problem(form, base_of(tmp_path), losses, batches, torch.device("cpu"))


def test_tasks_apart_are_each_learned_as_if_alone(tmp_path: Any) -> None:
    alone = [problem(tmp_path, [task]) for task in range(2)]
    together, starts = per_task_problem(alone, Layers(network(2))), [each.start() for each in alone]
    values = together.start()
    assert all(torch.equal(values[name], problem(tmp_path, [0, 1]).start()[name]) for name in values)
    loss, gradients = together.slope(values, STEP)
    single = [each.slope(start, STEP) for each, start in zip(alone, starts, strict=True)]
    assert loss == pytest.approx(sum(each for each, _ in single))
    for name, found in gradients.items():
        assert torch.equal(found, torch.cat([each[name] for _, each in single]))
    assert together.check(values) == pytest.approx(sum(p.check(start) for p, start in zip(alone, starts, strict=True)))
