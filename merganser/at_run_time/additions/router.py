"""A router of examples: it decides from the shared model's features how much of each task's part an example gets.

Legend: N examples, B of them in a batch, T tasks, C classes, D features, G weighted sums of the tasks' parts.
"""

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn.functional import pad

from merganser.at_run_time import Counts, Running, Section
from merganser.checkpoints.kinds import added
from merganser.checkpoints.reading import Checkpoint, open_for_merging
from merganser.checkpoints.tensors import SafetensorsFile
from merganser.checkpoints.views import in_file
from merganser.checkpoints.writing import save_tensors
from merganser.errors import InputError
from merganser.inputs.heads import Head
from merganser.inputs.layers import LayerSource
from merganser.inputs.task_models import own_model
from merganser.limits import parse_json
from merganser.models import Generates, Inputs, Network
from merganser.overlays import FILE as OVERLAYS
from merganser.overlays import LowRank, OverlayFile

FILE = "router.safetensors"
HOLDS = "how much of each task's part an input takes, by the features of `model.safetensors`"
TRAINED: Section | None = "routers"
TASK_GIVEN = False
GRID = 100  # shares are multiples of one hundredth
SIDES = {"u": 1, "s": 0, "vh": 0}  # of a low-rank part, and the dimension that counts its triples
BUDGET = 2**30  # bytes that all tasks' parts, multiplied out, may take in memory
AT_ONCE = 2**25  # bytes of the sums that are computed together
Sums = Callable[[Tensor], Tensor]  # by the tasks' weights (G, T), in the file's order: a parameter (G, ...)


@dataclass(frozen=True)
class Router:
    """A multinomial logistic regression."""

    tasks: tuple[str, ...]
    weight: Tensor  # (T, D)
    bias: Tensor  # (T,)

    def probabilities(self, features: Tensor) -> Tensor:
        """Return each example's probabilities of the tasks, in float64: (N, T)."""
        return torch.softmax(features.double() @ self.weight.double().T + self.bias.double(), dim=1)


def shares(probabilities: Tensor) -> Tensor:
    """Round each example's probabilities (N, T) to hundredths that add up to one; the likeliest task gets the rest.

    So examples that clearly belong to one task get that task's model alone, and run together.

    >>> shares(torch.tensor([[0.996, 0.004], [0.333, 0.667]], dtype=torch.float64)).tolist()
    [[1.0, 0.0], [0.33, 0.67]]
    """
    counts = (probabilities * GRID).round()
    likeliest = probabilities.argmax(dim=1, keepdim=True)
    rest = GRID - counts.sum(dim=1, keepdim=True)
    return counts.scatter_add(1, likeliest, rest) / GRID


def write_router(folder: Path, router: Router) -> None:
    """Write a router into one file."""
    tensors = {"weight": router.weight, "bias": router.bias}
    save_tensors(folder / FILE, tensors, json.dumps({"tasks": router.tasks}))


def read_router(folder: Path) -> Router:
    """Read the router of a merged model's folder."""
    file = SafetensorsFile(folder / FILE)
    try:
        tasks = tuple(str(task) for task in parse_json(file.metadata["merganser"])["tasks"])
        router = Router(tasks, file.read("weight"), file.read("bias"))
    except (KeyError, ValueError, TypeError) as error:
        raise InputError(f"{file.path}: not a router ({error}); merge again") from error
    if router.weight.dim() != 2 or router.bias.shape != router.weight.shape[:1] or len(tasks) != len(router.bias):
        raise InputError(f"{file.path}: its tensors are not of {len(tasks)} tasks; merge again")
    return router


def write(folder: Path, values: Mapping[str, Any], source: LayerSource, read: Path) -> None:
    """Copy the router of the stage `route` into a merge."""
    shutil.copyfile(read / FILE, folder / FILE)


@contextmanager
def put_in(network: Network, merged: Path, task: str, head: Head) -> Iterator[Running]:
    """Load the shared model; in the block, score each example by it plus its shares of the tasks' parts."""
    check_scores(network, f"{merged / FILE}")
    shared, overlays, router = open_for_merging(merged), OverlayFile(merged / OVERLAYS), read_router(merged)
    if set(router.tasks) != set(overlays.tasks):
        raise InputError(f"{merged / FILE}: its tasks are not those of {OVERLAYS}; merge again")
    network.load(head.put_on(own_model(shared, None)))
    mixed = MixedNetwork(network, router, open_mixtures(shared, overlays), overlays.tasks)
    yield Running(cast(Network, mixed), mixed.counts)


@dataclass(frozen=True)
class Mixtures:
    """A shared model plus weighted sums of the tasks' parts, parameter by parameter."""

    shared: Checkpoint
    sums: dict[str, Sums]  # of the parameters that tasks have parts of
    size: int  # of one sum of all, in bytes

    def models(self, weights: Tensor) -> Iterator[dict[str, Tensor]]:
        """Yield, for each row of weights (G, T), the changed parameters of the shared model."""
        for rows in weights.float().split(max(1, AT_ONCE // self.size)):
            sums = {name: summed(rows) for name, summed in self.sums.items()}
            for row in range(len(rows)):
                yield dict(in_file(self.shared, ((name, sum_of_rows[row]) for name, sum_of_rows in sums.items())))


def open_mixtures(shared: Checkpoint, overlays: OverlayFile, budget: int = BUDGET) -> Mixtures:
    """Read the parts of all tasks: multiplied out if all of them fit into the budget, else low-rank ones as factors.

    Others that do not fit are read again for each sum.
    """
    size = 4 * sum(prod(shared.spec(name).shape) for name in overlays.parameters)
    whole = len(overlays.tasks) * size <= budget
    sums = {name: _sums_of(overlays, name, shared.read(name), whole) for name in overlays.parameters}
    return Mixtures(shared, sums, max(1, size))


def _sums_of(overlays: OverlayFile, name: str, start: Tensor, whole: bool) -> Sums:
    """Return a function that adds weighted sums of a parameter's parts to the shared model's, with one rounding."""
    shape, dtype, tasks = tuple(start.shape), start.dtype, overlays.tasks
    if whole:
        deltas = [overlays.delta(task, name, shape) for task in tasks]
        stack = torch.stack([start.float(), *(torch.zeros(shape) if x is None else x for x in deltas)]).flatten(1)
        return lambda weights: (pad(weights, (1, 0), value=1.0) @ stack).view(-1, *shape).to(dtype)
    if overlays.kind(name) == LowRank.kind:
        parts = [(task, part) for task, part in enumerate(overlays.low_rank(name)) if part is not None]
        owners = torch.tensor([task for task, part in parts for _ in part.s])
        u, s, vh = (torch.cat([getattr(part, side).float() for _, part in parts], dim) for side, dim in SIDES.items())
        matrix = start.float().reshape(len(u), -1)
        return lambda weights: (
            torch.baddbmm(matrix, u * (s * weights[:, owners]).unsqueeze(1), vh.expand(len(weights), -1, -1))
            .view(-1, *shape)
            .to(dtype)
        )

    def read(weights: Tensor) -> Tensor:
        named = [{task: share for task, share in zip(tasks, row, strict=True) if share} for row in weights.tolist()]
        deltas = [overlays.mixture(shares, name, shape) for shares in named]
        return torch.stack([start if delta is None else added(start, delta) for delta in deltas])

    return read


class MixedNetwork:
    """A network with the shared model that scores each example by its mixture of the tasks' parts."""

    def __init__(self, network: Network, router: Router, mixtures: Mixtures, order: tuple[str, ...]) -> None:
        """Take the tasks in the order of the mixtures' weights."""
        self.network, self.router, self.mixtures = network, router, mixtures
        self.counts = Counts(router.tasks)
        self.order = [router.tasks.index(task) for task in order]

    def __getattr__(self, name: str) -> Any:
        """Do all but scoring as the network does."""
        return getattr(self.network, name)

    @torch.inference_mode()
    def logits(self, inputs: Inputs) -> Tensor:
        """Return the class logits (B, C); examples with the same shares of the tasks run together."""
        probabilities = self.router.probabilities(self.network.features(inputs).float().cpu())
        self.counts.take(probabilities.argmax(dim=1))
        kinds, kind_of = shares(probabilities)[:, self.order].unique(dim=0, return_inverse=True)
        device, dtype = self.network.device, next(self.network.module.parameters()).dtype
        parts = list[tuple[Tensor, Tensor]]()
        for number, model in enumerate(self.mixtures.models(kinds)):
            places = (kind_of == number).nonzero()[:, 0]
            parameters = {name: value.to(device, dtype) for name, value in model.items()}
            batch = {name: values[places.to(values.device)] for name, values in inputs.items()}
            parts.append((places, self.network.forward(parameters, batch)))
        order = torch.cat([places for places, _ in parts]).argsort()
        return torch.cat([scores for _, scores in parts])[order.to(device)]


def check_scores(network: Network, where: str) -> None:
    """Refuse a network that generates text, naming the place: its answers are not scored example by example."""
    if isinstance(network, Generates):
        raise InputError(
            f"{where}: routing works only for tasks with classes or numbers, not for tasks that generate text"
        )
