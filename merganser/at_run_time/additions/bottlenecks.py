"""Representation Surgery: a small bottleneck per task that corrects the features of a merged model.

Legend: N examples, D features, R rank.
"""

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from merganser.at_run_time import Running, Section
from merganser.checkpoints.tensors import SafetensorsFile
from merganser.checkpoints.writing import save_tensors
from merganser.errors import InputError
from merganser.inputs.heads import Head
from merganser.inputs.layers import LayerSource
from merganser.learning.batches import Batches
from merganser.models import ChangesFeatures, Network
from merganser.operators.drop import generator_of
from merganser.overlays import task_model

FILE = "bottlenecks.safetensors"
HOLDS = "what each task's features pass through before its head; no parameters of a model"
TRAINED: Section | None = "surgery"
TASK_GIVEN = True
CHECK = 10  # steps between two looks at the whole loss
DOWN, UP = "down", "up"


@dataclass(frozen=True)
class Bottleneck:
    """Two linear maps without biases."""

    down: Tensor  # (R, D)
    up: Tensor  # (D, R)

    def __call__(self, features: Tensor) -> Tensor:
        """Return features (..., D) without what the bottleneck makes of them.

        >>> Bottleneck(torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0], [2.0]]))(torch.tensor([[3.0, 4.0]]))
        tensor([[ 3., -2.]])
        """
        down, up = (weight.to(features.device, features.dtype) for weight in (self.down, self.up))
        return features - torch.relu(features @ down.T) @ up.T


@dataclass(frozen=True)
class Trained:
    """A task's bottleneck, and the loss over all examples by step, at some of the steps."""

    bottleneck: Bottleneck
    losses: Mapping[int, float]

    @property
    def best_step(self) -> int:
        """Return the step with the lowest loss, to which the bottleneck belongs."""
        return min(self.losses, key=lambda step: (self.losses[step], step))


def train(
    merged: Tensor, own: Tensor, seed: int, task: str, *, rank: int, steps: int, batch_size: int, lr: float
) -> Trained:
    """Move the merged model's features (N, D) towards the task's own model's, by the mean absolute difference.

    It starts from no change, and returns the best of the checked steps. Raises InputError at a NaN.
    """
    size = merged.shape[1]
    drawn = torch.rand(rank, size, generator=generator_of(seed, task, "surgery")).mul_(2).sub_(1).div_(size**0.5)
    down, up = drawn.to(merged.dtype).requires_grad_(), torch.zeros(size, rank, dtype=merged.dtype).requires_grad_()
    optimiser = torch.optim.Adam([down, up], lr=lr)
    batches = Batches(seed, task, "surgery", len(merged), batch_size)
    current = Bottleneck(down, up)
    best, losses = _copy(current), {0: _loss(current, merged, own)}
    if not isfinite(losses[0]):
        raise InputError(f"{task}: the loss is {losses[0]} before the first step: the models' features are not finite")
    for step in range(1, steps + 1):
        rows = batches.rows(step - 1)
        optimiser.zero_grad()
        (current(merged[rows]) - own[rows]).abs().mean().backward()
        optimiser.step()
        if step % CHECK == 0 or step == steps:
            loss_now = _loss(current, merged, own)
            if loss_now != loss_now:
                raise InputError(f"{task}: the loss is NaN after step {step}; lower lr")
            best = _copy(current) if loss_now < min(losses.values()) else best
            losses[step] = loss_now
    return Trained(best, losses)


@torch.no_grad()
def _loss(bottleneck: Bottleneck, merged: Tensor, own: Tensor) -> float:
    return float((bottleneck(merged) - own).abs().mean(dtype=torch.float64))


def _copy(bottleneck: Bottleneck) -> Bottleneck:
    return Bottleneck(bottleneck.down.detach().clone(), bottleneck.up.detach().clone())


def write_bottlenecks(folder: Path, bottlenecks: Mapping[str, Bottleneck]) -> None:
    """Write each task's bottleneck into one file."""
    tensors = {f"{task}/{DOWN}": one.down for task, one in bottlenecks.items()}
    save_tensors(folder / FILE, tensors | {f"{task}/{UP}": one.up for task, one in bottlenecks.items()})


def read_bottleneck(folder: Path, task: str) -> Bottleneck:
    """Read a task's bottleneck from a merged model's folder."""
    file = SafetensorsFile(folder / FILE)
    if f"{task}/{DOWN}" not in file:
        raise InputError(f"{file.path}: no bottleneck for the task {task!r}; merge again")
    return Bottleneck(file.read(f"{task}/{DOWN}"), file.read(f"{task}/{UP}"))


def write(folder: Path, values: Mapping[str, Any], source: LayerSource, read: Path) -> None:
    """Copy the bottlenecks of the stage `surgery` into a merge."""
    shutil.copyfile(read / FILE, folder / FILE)


@contextmanager
def put_in(network: Network, merged: Path, task: str, head: Head) -> Iterator[Running]:
    """Load the task's model; in the block, its features pass through the task's bottleneck."""
    bottleneck = read_bottleneck(merged, task)
    network.load(head.put_on(task_model(merged, task)))
    with can_change(network, f"{merged / FILE}").changing(bottleneck):
        yield Running(network, None)


def can_change(network: Network, where: str) -> ChangesFeatures:
    """Return a network whose features can be changed; raise InputError, naming the place, for any other."""
    if isinstance(network, ChangesFeatures):
        return network
    reason = "a bottleneck changes what a head sees, and this family's network has no features with a head after them"
    raise InputError(f"{where}: {reason}; it has for classes of images or texts, and for numbers")
