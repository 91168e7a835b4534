"""Layers in memory, for laws: what a method would be given by the pipeline."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from hashlib import sha256
from typing import Any

import torch
from torch import Tensor

from merganser import registry
from merganser.checkpoints.kinds import Kind
from merganser.inputs.layers import (
    GivenLayers,
    Layer,
    LayerDeltas,
    LayerFactors,
    LayerSource,
    LayerTable,
    Learned,
    MappedLayers,
    Side,
    Statistics,
    dense_layer,
)
from merganser.learning import BlockLearner
from merganser.linalg.decompositions import Factors
from merganser.merging.method import Method
from merganser.operators.drop import generator_of
from merganser.overlays.parts import Parts, mixed

FEW = 20  # gradient steps


def matrices(deltas: Sequence[Tensor], name: str = "w", seed: int = 0) -> LayerDeltas:
    """Make a matrix layer of T task matrices."""
    return made_layer(name, "matrix", torch.stack(list(deltas)), seed)


def vectors(deltas: Sequence[Tensor], name: str = "b", seed: int = 0) -> LayerDeltas:
    """Make a vector layer of T deltas."""
    return made_layer(name, "vector", torch.stack(list(deltas)), seed)


def made_layer(name: str, kind: Kind, deltas: Tensor, seed: int = 0) -> LayerDeltas:
    """Make a layer of T deltas, with made-up norms and statistics."""
    statistics, base = statistics_of(deltas, kind, name), base_of(deltas[0], name)
    tasks, norms = task_names(list(deltas)), norms_of(deltas)
    return LayerDeltas(name, kind, tasks, deltas, seed, norms, statistics=statistics, base=base)


def base_of(delta: Tensor, name: str) -> Tensor:
    """Make up the base's weights of a parameter: a function of its name and its shape."""
    generator = torch.Generator().manual_seed(int.from_bytes(sha256(name.encode()).digest()[:4], "little"))
    return 0.05 * torch.randn(delta.shape, dtype=torch.float64, generator=generator).to(delta.dtype)


def statistics_of(deltas: Tensor, kind: Kind, name: str) -> Statistics:
    """Make up statistics of T deltas that go with them: where rows, columns or tasks are shuffled, these are too.

    The inputs of a map called tall are on its rows.
    """
    largest = deltas.abs().reshape(len(deltas), -1).amax(1).clamp(min=torch.finfo(deltas.dtype).tiny)
    sizes = deltas / largest.view(-1, *[1] * (deltas.ndim - 1))
    fisher = 0.1 + sizes**2
    if kind == "vector":
        return Statistics({"fisher": fisher, "base_fisher": 0.2 + sizes**4})
    side: Side = "rows" if "tall" in name else "columns"
    rows = sizes if side == "columns" else sizes.mT
    if rows.shape[-1] > 10_000:  # too large for a Gram matrix, which is then that of no input
        return Statistics({"fisher": fisher, "base_fisher": 0.2 + sizes**4}, side)
    gram = rows.mT @ rows / rows.shape[-2] + torch.eye(rows.shape[-1], dtype=deltas.dtype)
    return Statistics({"gram": gram, "fisher": fisher, "base_fisher": 0.2 + sizes**4}, side)


def norms_of(deltas: Tensor) -> tuple[float, ...]:
    """Make up norms of the fine-tuned weights behind T deltas, different from task to task."""
    return tuple(1 + float(delta.double().norm()) for delta in deltas)


def factored(deltas: Sequence[Tensor], name: str = "w", rank: int | None = None) -> LayerFactors:
    """Decompose T task matrices with torch's SVD, keeping `rank` vectors (all by default)."""
    svds = [torch.linalg.svd(delta, full_matrices=False) for delta in deltas]
    return LayerFactors(name, task_names(deltas), tuple(Factors(u[:, :rank], s, vh[:rank]) for u, s, vh in svds))


def task_names(deltas: Sequence[Tensor]) -> tuple[str, ...]:
    """Name T tasks."""
    return tuple(f"task{t}" for t in range(len(deltas)))


@dataclass(frozen=True)
class Layers(LayerSource):
    """A LayerSource in memory."""

    layers: Sequence[Layer]

    @cached_property
    def table(self) -> LayerTable:
        tasks = self.layers[0].tasks if self.layers else ()
        kinds, shapes = {x.name: x.kind for x in self.layers}, {x.name: x.shape for x in self.layers}
        return LayerTable(tasks, kinds, shapes, embeddings_of(tasks))

    def layer(self, name: str) -> Layer:
        return self.layers[self.names.index(name)]


def embeddings_of(tasks: Sequence[str]) -> dict[str, Tensor]:
    """Make a unit embedding for each task, a function of its name; all of them within a right angle."""
    return {task: _embedding(task) for task in tasks}


@cache
def _embedding(task: str) -> Tensor:
    generator = torch.Generator().manual_seed(int.from_bytes(sha256(task.encode()).digest()[:4], "little"))
    return torch.nn.functional.normalize(torch.rand(8, generator=generator), dim=0)


def with_few_steps(method: Method, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values with few gradient steps, unless they say how many: each step is computed like the others."""
    return ({"steps": FEW} if "steps" in method.parameters.model_fields else {}) | dict(values)


def merged(name: str, *layers: Layer, **values: Any) -> list[Tensor | Parts]:
    """Run a method by its registered name over layers, first pass included."""
    method = registry.get(name)
    filled = method.validate(name, values)
    taken = [taken_by(method, layer) for layer in layers]
    return list(map(method.bind(filled, with_start(method, Layers(taken))), taken))


@dataclass(frozen=True)
class FirstTasks(MappedLayers):
    """The first of a source's tasks, for a method that merges no more."""

    count: int

    @property
    def table(self) -> LayerTable:
        return replace(self.source.table, tasks=self.source.tasks[: self.count])


def taken_by(method: Method, layer: Layer) -> Layer:
    """Keep as many of a layer's first tasks as the method merges."""
    count = method.most_tasks
    if count is None:
        return layer
    dense = dense_layer(layer)
    assert isinstance(dense, LayerDeltas)
    return replace(dense, tasks=dense.tasks[:count], deltas=dense.deltas[:count], norms=dense.norms[:count])


def with_start(method: Method, source: LayerSource) -> LayerSource:
    """Give a source the values that a method's learner begins with, and no more tasks than the method merges.

    Where these are routers, they are of one block, whose MLP the first layer is. A learner without steps merges by the
    layers' own statistics, or by made-up ones.
    """
    if method.most_tasks:
        return FirstTasks(source, partial(taken_by, method), method.most_tasks)
    learner = method.learner
    if not learner:
        return source
    settings, blocks = learner.settings(), dict[str, list[str]]()
    if learner.routers:
        values, blocks = learner.routers({"block": 4}, len(source.tasks), settings, 0), {"block": [source.names[0]]}
    elif isinstance(learner, BlockLearner):
        values = merged_maps(learner, source)
    elif learner.form:
        values = learner.form(MappedLayers(source, dense_layer), settings, 0).start()
    else:
        values = {}  # of no weights
    about = (method.name, settings.model_dump(), source.tasks, source.names)
    return GivenLayers(source, {"learned": Learned(*about, values, blocks)})


def merged_maps(learner: BlockLearner, source: LayerSource) -> dict[str, Tensor]:
    """Merge the matrices of which there are Gram matrices."""
    merged = {name: _merged_map(learner, source.layer(name)) for name in source.names}
    return {name: value for name, value in merged.items() if value is not None}


def _merged_map(learner: BlockLearner, given: Layer) -> Tensor | None:
    layer = dense_layer(given)
    assert isinstance(layer, LayerDeltas)
    own = layer.statistics if layer.statistics.measured else statistics_of(layer.deltas, layer.kind, layer.name)
    return learner.merge(replace(layer, statistics=own), learner.settings()) if "gram" in own.measured else None


def uniforms(shape: Sequence[int], *, seed: int, task: str, parameter: str) -> Tensor:
    """Draw at once the random numbers that a task's delta of a parameter is dropped by."""
    return torch.rand(tuple(shape), generator=generator_of(seed, task, parameter))


def delta_of(parts: Parts, task: str, shape: tuple[int, ...]) -> Tensor:
    """Return a task's own delta of this shape in float32: its part's, or its mixture of others'."""
    weights = parts.mixtures.get(task, {task: 1.0})
    unified = None if parts.unified is None else parts.unified.float().reshape(shape)
    stored = ((weight, parts.tasks[other]) for other, weight in weights.items() if other in parts.tasks)
    return mixed(((weight, part.delta(shape, unified)) for weight, part in stored), shape)
