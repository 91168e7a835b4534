"""Deltas computed from the models when a layer is read, without writing them: the input of `merganser merge`."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import repeat
from math import isfinite, prod
from typing import Any

import torch
from torch import Tensor

from merganser.checkpoints.adapters.binding import bind
from merganser.checkpoints.adapters.files import Adapter
from merganser.checkpoints.kinds import Kind, ParameterRules, delta_shape
from merganser.checkpoints.matching import matched
from merganser.checkpoints.reading import Checkpoint, place_of, read_into, read_part, read_pinned
from merganser.checkpoints.tensors import DTYPES, Part, Rows, tensor_name
from merganser.inputs.deltas import CPU, check_pair, checked_norm, stored_norm
from merganser.inputs.layers import Layer, LayerDeltas, LayerLowRank, LayerTable, UnreadLayer
from merganser.inputs.pieces import PIECE, DivisibleSource, pieces_of
from merganser.linalg.blocks import LARGE
from merganser.workers import BufferPool


class WholeNorms(Sequence[float]):
    """The norms of the tasks' whole parameters, for pieces of them; computed on first use, which is rare."""

    def __init__(self, norms: Sequence[Callable[[], float]]) -> None:
        self._norms = norms

    def __len__(self) -> int:
        return len(self._norms)

    def __getitem__(self, index: Any) -> Any:
        return self._norms[index]()


@dataclass(frozen=True)
class ModelDeltas(DivisibleSource):
    """The deltas of T models from a base as layers; a parameter that no model changes is not a layer.

    Adapters are bound to the base. Reading a layer for the first time raises InputError at a NaN or infinity.
    """

    base: Checkpoint
    models: Mapping[str, Checkpoint | Adapter]
    all_kinds: Mapping[str, Kind]  # of every parameter that may be merged
    seed: int = 0
    norms: dict[tuple[str | None, str], float] = field(default_factory=dict)  # known, by task (None: the base) and name
    buffers: BufferPool = field(default_factory=BufferPool)

    @cached_property
    def table(self) -> LayerTable:
        models = self.models.values()
        touched = {name for model in models if isinstance(model, Adapter) for name in model.updates}
        every = not all(isinstance(model, Adapter) for model in models)
        kinds = {name: kind for name, kind in sorted(self.all_kinds.items()) if every or name in touched}
        shapes = {name: delta_shape(self.base.spec(name).shape, kind) for name, kind in kinds.items()}
        return LayerTable(tuple(self.models), kinds, shapes)

    def layer(self, name: str) -> Layer:
        """Read one parameter of the base and all tasks: as factors where every task's model is an adapter's."""
        base = self.base.read(name)
        own_norm = self._norm(base, name, None)
        weights = base.to(torch.float32)
        if self.kinds[name] == "matrix" and all(_is_low_rank(model, name) for model in self.models.values()):
            return self._low_rank(name, weights, own_norm)
        deltas, norms = self.buffers.empty(len(self.models), *weights.shape), list[float]()
        for delta, (task, model) in zip(deltas, self.models.items(), strict=True):
            if not isinstance(model, Adapter):
                read_into(delta, model, name)
                norms.append(self._norm(delta, name, task))
                delta.sub_(weights)
            elif name in model.updates:
                delta.copy_(model.delta(name, weights))
                norms.append(self._norm(weights + delta, name, task))
            else:
                delta.zero_()
                norms.append(own_norm)
        stacked = deltas.view(len(deltas), *self.shapes[name])
        return LayerDeltas(name, self.kinds[name], self.tasks, stacked, self.seed, norms=tuple(norms))

    def is_divisible(self, name: str) -> bool:
        """Tell whether rows of a parameter can be read alone: all models store it in the base's layout."""
        models = (self.base, *self.models.values())
        return not any(isinstance(model, Adapter) or place_of(model, name) is None for model in models)

    def rows(self, rows: Rows) -> LayerDeltas:
        base, name = read_part(self.base, rows), rows.name
        deltas = self.buffers.empty(len(self.models), *base.shape)
        for delta, (task, model) in zip(deltas, self.models.items(), strict=True):
            assert not isinstance(model, Adapter), "an adapter's parameters are read whole"
            if not _subtracted(delta, model, rows, base):
                checked_norm(base, str(rows), "base")
                checked_norm(read_part(model, rows), str(rows), task)
        stacked = deltas.view(len(deltas), len(base), *self.shapes[name][1:])
        norms = WholeNorms([partial(self._whole_norm, task, name) for task in self.models])
        kind, tasks = self.kinds[name], self.tasks
        return LayerDeltas(str(rows), kind, tasks, stacked, self.seed, norms=norms, rows=rows, start=base)

    def unread(self, part: Part, base: Checkpoint | None = None) -> UnreadLayer:
        """Return the parts of one parameter, or of some of its rows, to read for a GPU: weights in their stored dtype.

        The base's become the layer's `start`. If a task's model is an adapter, all of them are read as by `layer`.
        """
        models = [model for model in self.models.values() if not isinstance(model, Adapter)]
        if len(models) < len(self.models):
            return super().unread(part, base)
        return UnreadLayer(
            [partial(read_pinned, model, part) for model in (self.base, *models)], partial(self._made, part)
        )

    def _made(self, part: Part, start: Tensor, *models: Tensor) -> LayerDeltas:
        """Subtract the base's weights from the models', and check them, on their device."""
        name, rows = tensor_name(part), None if isinstance(part, str) else part
        if rows is None:
            self._norm(start, name, None)
            norms: Sequence[float] = tuple(map(self._norm, models, repeat(name), self.tasks))
        else:
            norms = WholeNorms([partial(self._whole_norm, task, name, start.device) for task in self.models])
        deltas, weights = start.new_empty(len(models), *start.shape, dtype=torch.float32), start.to(torch.float32)
        for delta, own in zip(deltas, models, strict=True):
            delta.copy_(own).sub_(weights)
        if rows and not isfinite(deltas.sum()):
            for task, values in zip(("base", *self.tasks), (start, *models), strict=True):
                checked_norm(values, str(rows), task)
        shape = (*start.shape[:1], *self.shapes[name][1:]) if start.ndim else ()
        kind, stacked = self.kinds[name], deltas.view(len(deltas), *shape)
        return LayerDeltas(str(part), kind, self.tasks, stacked, self.seed, norms=norms, rows=rows, start=start)

    def _whole_norm(self, task: str, name: str, device: torch.device = CPU) -> float:
        model = self.models[task]
        assert not isinstance(model, Adapter), "an adapter's parameters are read whole"
        if (task, name) not in self.norms:
            self.norms[task, name] = stored_norm(model, name, device)
        return self.norms[task, name]

    def _norm(self, weights: Tensor, name: str, task: str | None) -> float:
        """Return the norm of a task's weights, or the base's, checked when they are read for the first time."""
        if (task, name) not in self.norms:
            self.norms[task, name] = checked_norm(weights, name, task or "base")
        return self.norms[task, name]

    def _low_rank(self, name: str, weights: Tensor, own_norm: float) -> LayerLowRank:
        rows, columns = self.shapes[name]
        sides, norms = [], []
        for task, model in self.models.items():
            assert isinstance(model, Adapter)
            if name in model.updates:
                sides.append(model.factors(name))
                norms.append(self._norm(weights + model.delta(name, weights), name, task))
            else:
                sides.append((torch.zeros(rows, 0), torch.zeros(0, columns)))
                norms.append(own_norm)
        left, right = zip(*sides, strict=True)
        return LayerLowRank(name, self.tasks, left, right, self.seed, norms=tuple(norms))


def _subtracted(delta: Tensor, model: Checkpoint, rows: Rows, base: Tensor) -> bool:
    """Write some rows of a model minus the base's into `delta`; tell whether they are known to be finite."""
    if base.dtype == torch.bfloat16 == DTYPES[model.spec(rows.name).dtype] and base.numel() >= LARGE:
        from merganser.linalg import loops

        bits = [each.reshape(-1).view(torch.uint16).numpy() for each in (read_part(model, rows), base)]
        return bool(loops.bfloat16_differences(*bits, delta.view(-1).numpy()))
    read_into(delta, model, rows)
    return isfinite(delta.sub_(base.to(torch.float32)).sum())  # else a sum beyond float32's range may be the reason


def unchanged(deltas: ModelDeltas, tasks: Collection[str]) -> list[str]:
    """Name the tasks whose models equal the base in all merged parameters.

    It compares the smallest parameters first, so that models that differ are soon known.
    """
    names, models = sorted(deltas.names, key=lambda name: (prod(deltas.shapes[name]), name)), deltas.models
    return [task for task in models if task in tasks and all(_is_equal(deltas.base, models[task], n) for n in names)]


def _is_equal(base: Checkpoint, model: Checkpoint | Adapter, name: str) -> bool:
    if isinstance(model, Adapter):
        return name not in model.updates or not model.delta(name, base.read(name)).any()
    shape = base.spec(name).shape
    parts = pieces_of(name, shape, PIECE) if shape and place_of(base, name) and place_of(model, name) else [name]
    return all(
        torch.equal(read_part(base, part).to(torch.float32), read_part(model, part).to(torch.float32)) for part in parts
    )


def _is_low_rank(model: Checkpoint | Adapter, name: str) -> bool:
    return isinstance(model, Adapter) and (name not in model.updates or model.is_low_rank(name))


def open_models(
    base: Checkpoint,
    models: Mapping[str, Checkpoint | Adapter],
    rules: ParameterRules,
    seed: int = 0,
) -> ModelDeltas:
    """Check every model against the base, from headers alone, and open their deltas, sorted by name.

    Raises InputError naming the model, the parameter and both shapes when they do not belong together.
    """
    kinds: dict[str, Kind] = {}
    for task in sorted(models):
        kinds = check_pair(base, models[task], rules, task)
    bound = {
        task: bind(model, base, rules, task) if isinstance(model, Adapter) else matched(base, model, rules, task)
        for task, model in sorted(models.items())
    }
    return ModelDeltas(base, bound, kinds, seed)
