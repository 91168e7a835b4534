"""The loop on a problem without networks: what it keeps, where it goes on, and that it ends in the same bytes."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from merganser.checkpoints.reading import Checkpoint, open_checkpoint
from merganser.checkpoints.views import View
from merganser.checkpoints.writing import save_tensors
from merganser.errors import InputError
from merganser.learning.batches import Batches
from merganser.learning.loop import FILE, LearningState, Loss, joint_problem, learn
from merganser.methods import concrete
from merganser.methods.adamerging import Settings, WeightedSum
from merganser.tasks.learn import examples_seen
from tests.laws.layers import Layers
from tests.laws.samples import joined, network

Make = Callable[..., LearningState]


def loss_of(task: int) -> Loss:
    """Return how far merged weights are from a task's own; some examples count more than others."""
    own = joined(network(2))[task].float()

    def loss(weights: Mapping[str, Tensor], rows: Sequence[int]) -> Tensor:
        flat = torch.cat([weight.reshape(-1) for weight in weights.values()])
        return 1e4 * (flat - own).square().mean() * (1 + sum(rows) / 100)

    return loss


def base_of(folder: Path) -> Checkpoint:
    """Write a base of zeros."""
    zeros = {name: torch.zeros(shape) for name, shape in Layers(network(2)).shapes.items()}
    save_tensors(folder / "base.safetensors", zeros)
    return open_checkpoint(folder / "base.safetensors")


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Give a function that learns so many steps in a folder, and returns where it stands."""
    layers = Layers(network(2))
    base = base_of(tmp_path)
    batches = [Batches(0, task, "validation", 9, 2) for task in layers.tasks]

    def made(
        folder: str, *, losses: Sequence[Loss] = (), said: list[LearningState] | None = None, **settings: Any
    ) -> LearningState:
        chosen = Settings(**{"lr": 0.05, "every": 3} | settings)
        form, these = WeightedSum(layers, chosen), losses or [loss_of(task) for task in range(2)]
        problem = joint_problem(form, base, these, batches, torch.device("cpu"))
        known = chosen.model_dump_json(exclude={"steps"})
        return learn(problem, chosen, tmp_path / folder, known, ([] if said is None else said).append)

    return made


def same(one: LearningState, other: LearningState) -> bool:
    groups = [(each.values, each.best, each.moments.mean, each.moments.square) for each in (one, other)]
    pairs = zip(*groups, strict=True)
    equal = all(torch.equal(a[name], b[name]) for a, b in pairs for name in a)
    return equal and (one.step, one.losses, one.checks) == (other.step, other.losses, other.checks)


@pytest.mark.parametrize("parts", [(2, 4), (3, 4), (1, 2, 3, 4), (4, 4), (0, 4)])
def test_steps_in_parts_are_the_steps_at_once(parts: Sequence[int], make: Make, tmp_path: Path) -> None:
    whole = make("whole", steps=4)
    ended = [make("parts", steps=steps) for steps in parts][-1]
    assert same(ended, whole)
    assert (tmp_path / "parts" / FILE).read_bytes() == (tmp_path / "whole" / FILE).read_bytes()


def test_it_goes_on_from_the_last_state_and_not_from_the_beginning(make: Make) -> None:
    make("one", steps=6)
    said: list[LearningState] = []
    make("one", steps=9, said=said)
    assert [state.step for state in said] == [9]


@pytest.mark.parametrize("change", [{"lr": 0.01}, {"every": 2}, {"granularity": "task"}])
def test_other_settings_begin_afresh(change: dict[str, Any], make: Make) -> None:
    make("one", steps=4)
    assert same(make("one", steps=4, **change), make("two", steps=4, **change))


def test_fewer_steps_begin_afresh(make: Make) -> None:
    make("one", steps=6)
    assert same(make("one", steps=3), make("two", steps=3))


def test_the_loss_falls_and_the_best_is_never_above_the_start(make: Make) -> None:
    state = make("one", steps=30, every=5)
    assert list(state.checks) == [0, 5, 10, 15, 20, 25, 30]
    assert state.checks[state.best_step] < 0.9 * state.checks[0]
    assert len(state.losses) == 30
    away = make("two", steps=9, lr=10.0)
    assert away.best_step == 0
    assert all(torch.all(value == 0.3) for value in away.best.values())
    assert all(loss > away.checks[0] for step, loss in away.checks.items() if step)


def test_no_steps_are_what_it_begins_with(make: Make, tmp_path: Path) -> None:
    state = make("one", steps=0)
    assert (state.step, state.losses, list(state.checks)) == (0, (), [0])
    make("two", steps=3)
    make("two", steps=0)
    assert (tmp_path / "two" / FILE).read_bytes() == (tmp_path / "one" / FILE).read_bytes()


def test_the_best_values_are_those_of_their_check(make: Make) -> None:
    state = make("one", steps=12, lr=0.5, every=1)
    stopped = make("two", steps=state.best_step, lr=0.5, every=1)
    assert 0 < state.best_step < 12
    assert all(torch.equal(state.best[name], value) for name, value in stopped.values.items())


def broken_after(calls: int) -> Loss:
    """Give the loss that is not a number once it was asked for so many times."""
    count, sound = 0, loss_of(0)

    def loss(weights: Mapping[str, Tensor], rows: Sequence[int]) -> Tensor:
        nonlocal count
        count += 1
        return sound(weights, rows) * (float("nan") if count > calls else 1.0)

    return loss


def test_a_loss_that_is_no_number_stops_it_names_the_step_and_keeps_the_best(make: Make) -> None:
    with pytest.raises(InputError, match=r"the loss is nan after step 4; the best so far, of step 3 \(loss ") as found:
        make("one", steps=9, losses=[broken_after(4 + 3 + 4 + 1), loss_of(1)])
    assert "`steps: 3` ends with it, or choose a smaller lr" in str(found.value)
    said: list[LearningState] = []
    assert same(make("one", steps=3, said=said), make("two", steps=3))
    assert said == []


def test_models_whose_loss_is_no_number_are_refused_before_the_first_step(make: Make) -> None:
    with pytest.raises(InputError, match="the loss is nan before the first step"):
        make("one", steps=9, losses=[broken_after(0), loss_of(1)])


def test_the_counted_examples_are_those_that_went_through_the_network_inner_steps_too(tmp_path: Path) -> None:
    settings = concrete.Settings(inner="adamerging", mask_steps=2, steps=3, every=1)
    form, seen = concrete.MaskedSum(Layers(network(2)), settings), {True: 0, False: 0}

    def loss(weights: Mapping[str, Tensor], rows: Sequence[int]) -> Tensor:
        found = loss_of(0)(weights, rows)
        seen[False] += len(rows)
        found.register_hook(lambda _: seen.update({True: seen[True] + len(rows)}))
        return found

    batches = [Batches(0, task, "validation", 9, 2) for task in ("a", "b")]
    problem = joint_problem(form, base_of(tmp_path), [loss, loss], batches, torch.device("cpu"))
    state = learn(problem, settings, tmp_path / "state", "", lambda _: None)
    assert examples_seen(problem, state) == {"forwards": seen[False], "backwards": seen[True]}
    assert seen[True] == (2 + 2 + 1) * 2 * 2  # two steps of the mask, with an inner one each, and one of coefficients


def test_a_damaged_state_is_learned_anew(make: Make, tmp_path: Path) -> None:
    make("one", steps=4)
    file = tmp_path / "one" / FILE
    file.write_bytes(file.read_bytes()[:-3])
    assert same(make("one", steps=4), make("two", steps=4))


def test_linear_maps_that_are_stored_in_by_out_are_formed_and_pulled_that_way(tmp_path: Path) -> None:
    layers = Layers(network(2))
    shapes = {name: torch.zeros(shape) for name, shape in layers.shapes.items()}
    save_tensors(tmp_path / "plain.safetensors", shapes)
    save_tensors(tmp_path / "turned.safetensors", shapes | {"tall": shapes["tall"].mT.contiguous()})
    plain, turned = (open_checkpoint(tmp_path / f"{name}.safetensors") for name in ("plain", "turned"))
    shown = View(turned, {name: name for name in turned.names}, frozenset({"tall"}))
    batches, form = [Batches(0, "a", "validation", 9, 2)], WeightedSum(layers, Settings())

    def loss(weights: Mapping[str, Tensor], rows: Sequence[int]) -> Tensor:
        assert weights["tall"].shape == (4, 9)
        return loss_of(0)({**weights, "tall": weights["tall"].mT}, rows)

    cpu = torch.device("cpu")
    expected = joint_problem(form, plain, [loss_of(0)], batches, cpu).slope(form.start(), 0)
    found = joint_problem(form, shown, [loss], batches, cpu).slope(form.start(), 0)
    assert found[0] == pytest.approx(expected[0])
    torch.testing.assert_close(found[1], expected[1])
