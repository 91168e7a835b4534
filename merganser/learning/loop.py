"""The loop that all learners share: batches, gradients, Adam, the state, and the best values so far.

Memory is that of a few models, whatever the number of tasks: merged weights are formed layer by layer, the gradient
with respect to them is added up over the tasks' batches, and pulled back to the values layer by layer.

The state on disk is written whole, with a fingerprint of all that it follows from but the number of steps. A killed run
goes on from the last state, and so does one with more steps, to the bytes of an undisturbed run.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import torch
from torch import Tensor

from merganser.checkpoints.reading import Checkpoint
from merganser.checkpoints.tensors import SafetensorsFile
from merganser.checkpoints.views import from_file, in_file
from merganser.checkpoints.writing import save_tensors
from merganser.errors import InputError
from merganser.inputs.factors import fingerprint_of
from merganser.inputs.layers import LayerSource
from merganser.learning import Form, Values
from merganser.learning.batches import Batches
from merganser.learning.settings import LearnerSettings

BETAS = (0.9, 0.999)
EPSILON = 1e-8


@dataclass(frozen=True)
class Moments:
    """The running means of the gradients and of their squares, and the number of steps of each value."""

    mean: Values
    square: Values
    moves: Mapping[str, int]


def no_moments(values: Values) -> Moments:
    """Return the moments before the first step."""
    mean, square = ({name: torch.zeros_like(value) for name, value in values.items()} for _ in range(2))
    return Moments(mean, square, dict.fromkeys(values, 0))


def adam(values: Values, gradients: Values, moments: Moments, lr: float) -> tuple[Values, Moments]:
    """Return values and moments after a step of Adam (Kingma and Ba, ICLR 2015); those without a gradient stay.

    >>> start = {"x": torch.tensor([1.0])}
    >>> adam(start, {"x": torch.tensor([-5.0])}, no_moments(start), 0.1)[0]["x"]
    tensor([1.1000])
    """
    first, second = BETAS
    changed, mean, square = dict(values), dict(moments.mean), dict(moments.square)
    moves = {name: count + (name in gradients) for name, count in moments.moves.items()}
    for name, gradient in gradients.items():
        has, needs = ((x.dtype, tuple(x.shape)) if x is not None else None for x in (gradient, values.get(name)))
        if has != needs:
            raise InputError(f"the learner's gradient of {name} is {has}, but its initial value is {needs}: correct it")
        mean[name] = moments.mean[name].lerp(gradient, 1 - first)
        square[name] = moments.square[name].mul(second).addcmul_(gradient, gradient, value=1 - second)
        size = square[name].div(1 - second ** moves[name]).sqrt_().add_(EPSILON)
        changed[name] = values[name].addcdiv(mean[name], size, value=-lr / (1 - first ** moves[name]))
    return changed, Moments(mean, square, moves)


FILE = "state.safetensors"
PARTS = ("values", "mean", "square", "best")


@dataclass(frozen=True)
class LearningState:
    """The state after a number of steps; `best` has the values of the lowest loss on the fixed examples."""

    step: int
    values: Values
    moments: Moments
    best: Values
    losses: tuple[float, ...]  # of each step's batches, before the step
    checks: dict[int, float]  # the losses on the fixed examples, by how many steps came before

    @property
    def best_step(self) -> int:
        """Return the step with the lowest loss on the fixed examples; the first of equal ones."""
        return min(self.checks, key=lambda step: (self.checks[step], step))


def write_state(folder: Path, state: LearningState, fingerprint: str) -> None:
    """Write a state over the last one."""
    folder.mkdir(parents=True, exist_ok=True)
    groups = (state.values, state.moments.mean, state.moments.square, state.best)
    tensors = {f"{part}/{name}": x for part, group in zip(PARTS, groups, strict=True) for name, x in group.items()}
    about = {
        "fingerprint": fingerprint,
        "moves": dict(state.moments.moves),
        "step": state.step,
        "losses": state.losses,
        "checks": list(state.checks.items()),
    }
    save_tensors(folder / FILE, tensors, json.dumps(about))


def read_state(folder: Path, fingerprint: str, steps: int) -> LearningState | None:
    """Read the last state; None if there is none, if its inputs differ, or if it has more steps than wanted."""
    if fingerprint_of(folder / FILE) != fingerprint:
        return None
    file = SafetensorsFile(folder / FILE)
    about = json.loads(file.metadata["merganser"])
    if about["step"] > steps:
        return None
    groups: dict[str, Values] = {part: {} for part in PARTS}
    for name in file.names:
        part, _, own = name.partition("/")
        groups[part][own] = file.read(name)
    values, mean, square, best = groups.values()
    checks = {int(step): float(loss) for step, loss in about["checks"]}
    return LearningState(
        about["step"], values, Moments(mean, square, about["moves"]), best, tuple(about["losses"]), checks
    )


Loss = Callable[[Mapping[str, Tensor], Sequence[int]], Tensor]


class Learnable(NamedTuple):
    """A learning problem: its examples, its initial values, and functions that return the loss and its gradient."""

    layers: LayerSource
    batches: Sequence[Batches]  # of each task
    start: Callable[[], Values]  # gives the values to begin with
    slope: Callable[[Values, int], tuple[float, Values]]  # gives a step's loss, added over tasks, and its gradient
    check: Callable[[Values], float]  # gives the loss on the fixed examples, without noise; on the same path as `slope`
    blocks: Mapping[str, Sequence[str]] = MappingProxyType({})  # parameters that are mixed for each example, by blocks
    passes: Callable[[int], int] = lambda step: 1  # counts how often a step's batches go through the networks


def joint_problem(
    form: Form,
    base: Checkpoint,
    losses: Sequence[Loss],
    batches: Sequence[Batches],
    device: torch.device,
) -> Learnable:
    """Learn values that form merged weights, by each task's loss of these weights on its examples."""
    layers = form.layers

    def weights(values: Values, step: int | None) -> dict[str, Tensor]:
        deltas = zip(layers.names, layers.map(form.form(values, step)), strict=True)
        return {name: merged.to(device).requires_grad_() for name, merged in merged_weights(base, deltas)}

    def by_weights(values: Values, step: int) -> tuple[float, dict[str, Tensor]]:
        leaves = weights(values, step)
        total = descend(losses, batches, leaves, step)
        mapped = (from_file(base, name, gradient_of(leaf)) for name, leaf in leaves.items())
        return total, {name: gradient for each in mapped for name, gradient in each.items()}

    def slope(values: Values, step: int) -> tuple[float, Values]:
        total, gradients = by_weights(values, step)
        ahead = form.ahead(values, step, gradients)
        if ahead is not None:
            _, gradients = by_weights(ahead, step)
        return total + form.penalty(values, step), form.pull(ahead or values, step, gradients)

    def check(values: Values) -> float:
        return fixed_loss(losses, batches, weights(values, None)) + form.penalty(values, None)

    return Learnable(layers, batches, form.start, slope, check, passes=form.passes)


def per_task_problem(tasks: Sequence[Learnable], layers: LayerSource) -> Learnable:
    """Learn each task's own values by the loss of its own model; the losses are added up.

    The values are tensors (T, ...) with one row per task. `layers`: of all tasks.
    """

    def each(values: Values) -> Iterator[tuple[Learnable, Values]]:
        for number, task in enumerate(tasks):
            yield task, {name: value[number : number + 1] for name, value in values.items()}

    def slope(values: Values, step: int) -> tuple[float, Values]:
        losses, gradients = zip(*(task.slope(own, step) for task, own in each(values)), strict=True)
        return sum(losses), _together(gradients)

    return Learnable(
        layers,
        batches=[batches for task in tasks for batches in task.batches],
        start=lambda: _together([task.start() for task in tasks]),
        slope=slope,
        check=lambda values: sum(task.check(own) for task, own in each(values)),
        passes=tasks[0].passes,
    )


def _together(rows: Sequence[Values]) -> Values:
    return {name: torch.cat([row[name] for row in rows]) for name in rows[0]}


def descend(losses: Sequence[Loss], batches: Sequence[Batches], weights: Mapping[str, Tensor], step: int) -> float:
    """Return a step's loss, summed over the tasks' batches; backpropagate it to its inputs."""
    total = 0.0
    for loss, of_task in zip(losses, batches, strict=True):
        task_loss = loss(weights, of_task.rows(step))
        task_loss.backward()
        total += float(task_loss.detach())
    return total


def gradient_of(leaf: Tensor) -> Tensor:
    """Return a leaf's gradient on the CPU; zeros if no forward pass used it."""
    return (torch.zeros_like(leaf) if leaf.grad is None else leaf.grad).cpu()


def merged_weights(base: Checkpoint, deltas: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
    """Return the base plus merged deltas, in float32 or wider, in the layout of the architecture's files."""

    def merged(name: str, delta: Tensor) -> Tensor:
        start = base.read(name).to(torch.promote_types(delta.dtype, torch.float32))
        return start + delta.reshape(start.shape)

    return in_file(base, ((name, merged(name, delta)) for name, delta in deltas))


def fixed_loss(losses: Sequence[Loss], batches: Sequence[Batches], weights: Mapping[str, Tensor]) -> float:
    """Return the mean loss of each task's fixed examples with these weights, summed over the tasks."""
    total = 0.0
    for loss, of_task in zip(losses, batches, strict=True):
        parts = [(len(rows), float(loss(weights, rows).detach())) for rows in of_task.fixed()]
        total += sum(count * part for count, part in parts) / sum(count for count, _ in parts)
    return total


def learn(
    problem: Learnable, settings: LearnerSettings, folder: Path, fingerprint: str, say: Callable[[LearningState], None]
) -> LearningState:
    """Resume from the state in a folder, or start, and return the state after the last step, with its loss checked.

    Raises InputError if a loss is not finite; the last good state stays in the folder.
    """
    state = read_state(folder, fingerprint, settings.steps)
    if state is None:
        state = _first(problem)
        write_state(folder, state, fingerprint)
    for next_state in _states(problem, settings, state):
        state = next_state
        write_state(folder, state, fingerprint)
        say(state)
    return _checked(problem, state)


def _states(problem: Learnable, settings: LearnerSettings, state: LearningState) -> Iterator[LearningState]:
    """Yield the states to write: one every so many steps, where the loss is checked, and the last one."""
    while state.step < settings.steps:
        state = _stepped(problem, settings, state)
        if state.step % settings.every == 0:
            state = _checked(problem, state)
        if state.step % settings.every == 0 or state.step == settings.steps:
            yield state


def _first(problem: Learnable) -> LearningState:
    values = problem.start()
    return _checked(problem, LearningState(0, values, no_moments(values), values, (), {}))


def _stepped(problem: Learnable, settings: LearnerSettings, state: LearningState) -> LearningState:
    loss, gradients = problem.slope(state.values, state.step)
    _refuse_nan(loss, state)
    values, moments = adam(state.values, gradients, state.moments, settings.lr)
    return replace(state, step=state.step + 1, values=values, moments=moments, losses=(*state.losses, loss))


def _checked(problem: Learnable, state: LearningState) -> LearningState:
    """Measure the loss on the fixed examples; keep the values if it is the lowest so far."""
    if state.step in state.checks:
        return state
    loss = problem.check(state.values)
    _refuse_nan(loss, state)
    best = state.values if all(loss < other for other in state.checks.values()) else state.best
    return replace(state, best=best, checks=state.checks | {state.step: loss})


def _refuse_nan(loss: float, state: LearningState) -> None:
    if isfinite(loss):
        return
    if not state.checks:
        raise InputError(f"the loss is {loss} before the first step: the models' predictions are not finite")
    best, last = state.best_step, max(state.checks)
    kept = f"the best so far, of step {best} (loss {state.checks[best]:.6g}), is kept: `steps: {last}` ends with it"
    raise InputError(f"the loss is {loss} after step {state.step}; {kept}, or choose a smaller lr")
