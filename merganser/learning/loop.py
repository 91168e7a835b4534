"""The loop that all learners share: batches, gradients, Adam, the state, and the best values so far.

Memory is that of a few models, whatever the number of tasks: merged weights are formed layer by layer, the gradient
with respect to them is added up over the tasks' batches, and pulled back to the values layer by layer.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from merganser.checkpoints.reading import Checkpoint
from merganser.checkpoints.views import from_file, in_file
from merganser.errors import InputError
from merganser.inputs.layers import LayerSource
from merganser.learning import Form, Values
from merganser.learning.adam import adam, no_moments
from merganser.learning.batches import Batches
from merganser.learning.settings import LearnerSettings
from merganser.learning.state import State, read_state, write_state

Loss = Callable[[Mapping[str, Tensor], Sequence[int]], Tensor]


class Learnable(Protocol):
    """What is learned, on which examples, and how far it is from good."""

    @property
    def layers(self) -> LayerSource:
        """Return the tasks' layers."""

    @property
    def batches(self) -> Sequence[Batches]:
        """Return each task's examples."""

    @property
    def blocks(self) -> Mapping[str, Sequence[str]]:
        """Name the parameters that are mixed for each example, by blocks; none where values form merged weights."""

    def start(self) -> Values:
        """Return the values to begin with."""

    def slope(self, values: Values, step: int) -> tuple[float, Values]:
        """Return the loss on a step's batches, added over the tasks, and its gradient with respect to the values."""

    def check(self, values: Values) -> float:
        """Return the loss on the fixed examples, without noise; on the same path through the network as `slope`."""


@dataclass(frozen=True)
class Problem:
    """What is learned: values that form merged weights, and each task's loss of these on its examples."""

    form: Form
    layers: LayerSource
    base: Checkpoint
    losses: Sequence[Loss]
    batches: Sequence[Batches]  # of the same tasks
    device: torch.device

    @property
    def blocks(self) -> Mapping[str, Sequence[str]]:
        """Name no block: values form merged weights."""
        return {}

    def start(self) -> Values:
        """Return the values that the form begins with."""
        return self.form.start()

    def weights(self, values: Values, step: int | None) -> dict[str, Tensor]:
        """Form the merged weights, as the leaves that gradients are taken with respect to."""
        deltas = zip(self.layers.names, self.layers.map(self.form.form(values, step)), strict=True)
        return {name: weights.to(self.device).requires_grad_() for name, weights in merged_weights(self.base, deltas)}

    def slope(self, values: Values, step: int) -> tuple[float, Values]:
        """Return the loss on a step's batches, added over the tasks, and its gradient with respect to the values."""
        total, gradients = self._gradients(values, step)
        ahead = self.form.ahead(values, step, gradients)
        if ahead is not None:
            _, gradients = self._gradients(ahead, step)
        return total + self.form.penalty(values, step), self.form.pull(ahead or values, step, gradients)

    def _gradients(self, values: Values, step: int) -> tuple[float, dict[str, Tensor]]:
        """Return the loss on a step's batches, and its gradient with respect to each layer's merged weights."""
        weights, total = self.weights(values, step), 0.0
        for loss, batches in zip(self.losses, self.batches, strict=True):
            found = loss(weights, batches.rows(step))
            found.backward()
            total += float(found.detach())
        return total, {key: each for name, leaf in weights.items() for key, each in self._gradient(name, leaf).items()}

    def _gradient(self, name: str, leaf: Tensor) -> dict[str, Tensor]:
        """Return the gradient of a parameter as the layers have it, zeros for one that no forward pass reads."""
        found = torch.zeros_like(leaf) if leaf.grad is None else leaf.grad
        return from_file(self.base, name, found.cpu())

    def check(self, values: Values) -> float:
        """Return the loss on the fixed examples, without noise; on the same path through the network as `slope`."""
        return fixed_loss(self.losses, self.batches, self.weights(values, None)) + self.form.penalty(values, None)


def merged_weights(base: Checkpoint, deltas: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
    """Give parameters of the base plus merged deltas, in float32 at least, as the architecture's files have them."""

    def merged(name: str, delta: Tensor) -> Tensor:
        start = base.read(name).to(torch.promote_types(delta.dtype, torch.float32))
        return start + delta.reshape(start.shape)

    return in_file(base, ((name, merged(name, delta)) for name, delta in deltas))


def fixed_loss(losses: Sequence[Loss], batches: Sequence[Batches], weights: Mapping[str, Tensor]) -> float:
    """Return the mean loss of each task's fixed examples with these weights, added over the tasks."""
    total = 0.0
    for loss, of_task in zip(losses, batches, strict=True):
        parts = [(len(rows), float(loss(weights, rows).detach())) for rows in of_task.fixed()]
        total += sum(count * part for count, part in parts) / sum(count for count, _ in parts)
    return total


def learn(
    problem: Learnable, settings: LearnerSettings, folder: Path, fingerprint: str, say: Callable[[State], None]
) -> State:
    """Go on from the state in a folder, or begin, and return the state after the last step, which is checked too.

    Raises InputError where a loss is not finite; the last state before stays in the folder.
    """
    state = read_state(folder, fingerprint, settings.steps)
    if state is None:
        state = _first(problem)
        write_state(folder, state, fingerprint)
    for each in _states(problem, settings, state):
        state = each
        write_state(folder, state, fingerprint)
        say(state)
    return _checked(problem, state)


def _states(problem: Learnable, settings: LearnerSettings, state: State) -> Iterator[State]:
    """Give the states to be written: every so many steps, where they are checked, and the last one."""
    while state.step < settings.steps:
        state = _stepped(problem, settings, state)
        if state.step % settings.every == 0:
            state = _checked(problem, state)
        if state.step % settings.every == 0 or state.step == settings.steps:
            yield state


def _first(problem: Learnable) -> State:
    values = problem.start()
    return _checked(problem, State(0, values, no_moments(values), values, (), {}))


def _stepped(problem: Learnable, settings: LearnerSettings, state: State) -> State:
    loss, gradients = problem.slope(state.values, state.step)
    _refuse_nan(loss, state)
    values, moments = adam(state.values, gradients, state.moments, settings.lr)
    return replace(state, step=state.step + 1, values=values, moments=moments, losses=(*state.losses, loss))


def _checked(problem: Learnable, state: State) -> State:
    """Measure the values on the fixed examples, and keep them where the loss was never as low."""
    if state.step in state.checks:
        return state
    loss = problem.check(state.values)
    _refuse_nan(loss, state)
    best = state.values if all(loss < other for other in state.checks.values()) else state.best
    return replace(state, best=best, checks=state.checks | {state.step: loss})


def _refuse_nan(loss: float, state: State) -> None:
    if isfinite(loss):
        return
    if not state.checks:
        raise InputError(f"the loss is {loss} before the first step: the models' predictions are not finite")
    best, last = state.best_step, max(state.checks)
    kept = f"the best so far, of step {best} (loss {state.checks[best]:.6g}), is kept: `steps: {last}` ends with it"
    raise InputError(f"the loss is {loss} after step {state.step}; {kept}, or choose a smaller lr")
