"""The input of a method: one layer of all tasks.

Shape legend: T tasks, M rows, N columns, R = min(M, N), K stored singular vectors (K <= R), Q rank of an adapter.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from math import prod
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor

from merganser.checkpoints.kinds import Kind, is_measured
from merganser.checkpoints.reading import read_part
from merganser.checkpoints.tensors import Checkpoint, Part, Rows, tensor_name
from merganser.linalg.decompositions import Basis, Factors
from merganser.workers import map_in_order

R = TypeVar("R")
MERGE_WORK = 4  # peak memory of a merge, in float32 copies of the layer, if a method declares nothing else

Side = Literal["rows", "columns"]  # how matrices are joined for a decomposition: side by side, or stacked vertically


@dataclass(frozen=True)
class Statistics:
    """Statistics of one parameter, measured with T tasks' data, by kind; `base_<kind>` is the base's.

    Their shape is that of the deltas, (T, M, N) or (T, *shape), or (T, K, K) over the inputs x of a linear map.
    """

    measured: Mapping[str, Tensor] = field(default_factory=dict)
    side: Side = "columns"  # of the deltas that the inputs x lie on: K is N, or M where the map is applied as x W

    def __getitem__(self, kind: str) -> Tensor:
        """Return one that a method declares that it needs."""
        assert kind in self.measured, f"the layer was read without its {kind}"
        return self.measured[kind]


@dataclass(frozen=True)
class LayerDeltas:
    """One parameter's deltas (fine-tuned minus base) over all tasks, in float32; or those of some of its rows."""

    name: str
    kind: Kind
    tasks: tuple[str, ...]
    deltas: Tensor  # (T, M, N) for a matrix, (T, *shape) for a vector
    seed: int = 0
    norms: Sequence[float] = ()  # T Frobenius norms of the fine-tuned weights
    basis: Basis | None = None  # of these deltas, or of their transposes, as the method asks; None if not cached
    statistics: Statistics = Statistics()  # for methods that read statistics
    weights: Sequence[float] = ()  # T, of the deltas in the merge, for a method that weighs them itself; none: 1 each
    base: Tensor | None = None  # the base's weights, of the shape of one delta, for methods on the models' weights
    rows: Rows | None = None  # which rows of a parameter these are, if not all; norms are the whole parameter's
    start: Tensor | None = None  # the base's values as its file has them, where they were read with these deltas

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the shape of one task's delta: (M, N) for a matrix."""
        return tuple(self.deltas.shape[1:])

    @property
    def dtype(self) -> torch.dtype:
        """Return the deltas' dtype."""
        return self.deltas.dtype


@dataclass(frozen=True)
class LayerFactors:
    """One matrix parameter's factors over all tasks."""

    name: str
    tasks: tuple[str, ...]
    factors: tuple[Factors, ...]  # T of them
    seed: int = 0
    norms: Sequence[float] = ()
    stored: torch.dtype = torch.float32  # dtype of the vectors on disk: casting them back to it loses nothing
    kind: Literal["matrix"] = "matrix"
    start: Tensor | None = None  # the base's values as its file has them, where they were read with these factors

    @property
    def shape(self) -> tuple[int, int]:
        """Return (M, N)."""
        first = self.factors[0]
        return first.u.shape[0], first.vh.shape[1]


@dataclass(frozen=True)
class LayerLowRank:
    """One matrix parameter's deltas as low-rank adapters (LoRA): task t's is left[t] @ right[t]."""

    name: str
    tasks: tuple[str, ...]
    left: tuple[Tensor, ...]  # T of (M, Q), Q of the task
    right: tuple[Tensor, ...]  # T of (Q, N)
    seed: int = 0
    norms: Sequence[float] = ()
    kind: Literal["matrix"] = "matrix"
    start: Tensor | None = None  # the base's values as its file has them, where they were read with these factors

    @property
    def shape(self) -> tuple[int, int]:
        """Return (M, N)."""
        return self.left[0].shape[0], self.right[0].shape[1]

    @property
    def dtype(self) -> torch.dtype:
        """Return the adapters' dtype."""
        return self.left[0].dtype

    def dense(self) -> LayerDeltas:
        """Multiply the adapters out."""
        deltas = torch.stack([left @ right for left, right in zip(self.left, self.right, strict=True)])
        return LayerDeltas(self.name, "matrix", self.tasks, deltas, self.seed, self.norms, start=self.start)


Layer = LayerDeltas | LayerFactors | LayerLowRank


@dataclass(frozen=True)
class Learned:
    """The values that a learner found for some tasks' parameters."""

    learner: str
    settings: Mapping[str, Any]
    tasks: Sequence[str]
    names: Sequence[str]  # of the parameters
    values: dict[str, Tensor]
    blocks: Mapping[str, Sequence[str]] = field(default_factory=dict)  # parameters that a router mixes, by its block


@dataclass(frozen=True)
class LayerTable:
    """What the headers say of the layers, and the inputs that only a few methods take."""

    tasks: tuple[str, ...]
    kinds: Mapping[str, Kind]  # by the layers' names, in their order
    shapes: Mapping[str, tuple[int, ...]]  # of one task's delta, (M, N) for a matrix
    embeddings: Mapping[str, Tensor] = field(default_factory=dict)  # of each task's class names (D,)
    learned: Learned | None = None  # of these layers
    rows: Mapping[str, Rows] = field(default_factory=dict)  # what a layer is that is not a whole parameter

    def parameter(self, name: str) -> str:
        """Return the name of a layer's parameter; a layer may be some rows of it."""
        return tensor_name(self.rows.get(name, name))


@dataclass(frozen=True)
class UnreadLayer:
    """A layer that is read in parts and then put together on the CPU or a GPU.

    `reads`: functions that return values with tensors on the CPU; `make`: takes these values, on one device.
    """

    reads: Sequence[Callable[[], Any]]
    make: Callable[..., Layer]


def unread_layer(read: Callable[[], Layer], part: Part, base: Checkpoint | None) -> UnreadLayer:
    """Return a layer that is read in one part, with the base's values of the same parameter or rows."""
    if base is None:
        return UnreadLayer([read], lambda layer: layer)
    return UnreadLayer([read, partial(read_part, base, part)], lambda layer, start: replace(layer, start=start))


class LayerSource(ABC):
    """Layers that can be read repeatedly, one at a time or a few in threads: memory holds only those being read."""

    @property
    @abstractmethod
    def table(self) -> LayerTable:
        """Return what is known of the layers from headers alone."""

    @abstractmethod
    def layer(self, name: str) -> Layer:
        """Read one parameter of all tasks; may be called from several threads."""

    def unread(self, name: str, base: Checkpoint | None = None) -> UnreadLayer:
        """Return the parts of one parameter to read for a GPU; the layer's `start` has its values in `base`."""
        return unread_layer(partial(self.layer, name), self.table.rows.get(name, name), base)

    def map(self, function: Callable[[Any], R]) -> Iterator[R]:
        """Read each layer and apply a function, possibly in threads or on a GPU; the function must not keep the layer.

        It takes the kind of layers that these are. Results come in the names' order, with their tensors on the CPU.
        """
        return self.spread(lambda name: function(self.layer(name)))

    def spread(self, function: Callable[[str], R]) -> Iterator[R]:
        """Apply a function to each name, in the threads of `map`, for layers that are stored elsewhere."""
        return map(function, self.names)

    @property
    def tasks(self) -> tuple[str, ...]:
        """Return the tasks' names."""
        return self.table.tasks

    @property
    def names(self) -> tuple[str, ...]:
        """Return the merged parameters' names."""
        return tuple(self.table.kinds)

    @property
    def kinds(self) -> Mapping[str, Kind]:
        """Return each parameter's kind."""
        return self.table.kinds

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Return the shape of one task's delta of each parameter, (M, N) for a matrix."""
        return self.table.shapes

    @property
    def entries(self) -> int:
        """Return how many entries one task's delta has in all layers together."""
        return sum(map(prod, self.shapes.values()))

    def __iter__(self) -> Iterator[Layer]:
        return map(self.layer, self.names)


@dataclass(frozen=True)
class WrappedSource(LayerSource):
    """The base class of sources that read another source's layers in another way."""

    source: LayerSource

    @property
    def table(self) -> LayerTable:
        return self.source.table

    def layer(self, name: str) -> Layer:
        return self.source.layer(name)

    def spread(self, function: Callable[[str], R]) -> Iterator[R]:
        return self.source.spread(function)


@dataclass(frozen=True)
class MappedLayers(WrappedSource):
    """A source whose layers are changed when they are read: weighted or decomposed."""

    change: Callable[[Layer], Layer]

    def layer(self, name: str) -> Layer:
        return self.change(self.source.layer(name))

    def map(self, function: Callable[[Layer], R]) -> Iterator[R]:
        return self.source.map(lambda layer: function(self.change(layer)))


@dataclass(frozen=True)
class GivenLayers(WrappedSource):
    """A source with additions to its table: `embeddings`, or the values `learned` for its layers."""

    about: Mapping[str, Any]

    @cached_property
    def table(self) -> LayerTable:
        return replace(self.source.table, **self.about)

    def unread(self, name: str, base: Checkpoint | None = None) -> UnreadLayer:
        return self.source.unread(name, base)


@dataclass(frozen=True)
class SomeLayers(LayerSource):
    """A source with some layers of another one."""

    source: LayerSource
    chosen: Sequence[str]

    @cached_property
    def table(self) -> LayerTable:
        table = self.source.table
        kinds = {name: table.kinds[name] for name in self.chosen}
        return replace(table, kinds=kinds, shapes={name: table.shapes[name] for name in kinds})

    def layer(self, name: str) -> Layer:
        return self.source.layer(name)

    def unread(self, name: str, base: Checkpoint | None = None) -> UnreadLayer:
        return self.source.unread(name, base)


def replace_innermost(source: LayerSource, change: Callable[[LayerSource], LayerSource]) -> LayerSource:
    """Replace the innermost of nested sources; the outer ones, with their threads or GPU, stay."""
    if isinstance(source, WrappedSource):
        return replace(source, source=replace_innermost(source.source, change))
    return change(source)


def weights_of(source: LayerSource) -> LayerSource:
    """Leave out batch-normalisation statistics, which are measured and not weights."""
    chosen = [name for name in source.names if not is_measured(source.table.parameter(name))]
    return source if len(chosen) == len(source.names) else replace_innermost(source, partial(SomeLayers, chosen=chosen))


@dataclass(frozen=True)
class ThreadedLayers(WrappedSource):
    """A source that processes several layers in parallel threads; `work`: the peak memory, as in MERGE_WORK."""

    threads: int
    work: float = MERGE_WORK

    def spread(self, function: Callable[[str], R]) -> Iterator[R]:
        """Apply a function to as many names at a time as there are threads, fewer if memory is short."""
        shapes, bytes_each = self.shapes, self.work * 4 * len(self.tasks)
        return map_in_order(function, self.names, self.threads, lambda name: round(bytes_each * prod(shapes[name])))


def part_of(layer: Layer) -> Part:
    """Return the name of a layer's parameter, or the rows that the layer has of it."""
    return (layer.rows if isinstance(layer, LayerDeltas) else None) or layer.name


def dense_layer(layer: Layer) -> Layer:
    """Multiply a layer's adapters out; return any other layer as it is."""
    return layer.dense() if isinstance(layer, LayerLowRank) else layer


def weighted(layer: Layer, weights: tuple[float, ...]) -> Layer:
    """Multiply each task's delta by its weight; drop the basis, which is that of the unweighted deltas."""
    if all(weight == 1 for weight in weights):
        return layer
    if isinstance(layer, LayerFactors):
        signed = zip(layer.factors, weights, strict=True)
        return replace(layer, factors=tuple(Factors(f.u if w >= 0 else -f.u, f.s * abs(w), f.vh) for f, w in signed))
    if isinstance(layer, LayerLowRank):
        return replace(layer, left=tuple(left * w for left, w in zip(layer.left, weights, strict=True)))
    factors = torch.tensor(weights, dtype=layer.deltas.dtype, device=layer.deltas.device)
    return replace(layer, deltas=layer.deltas * factors.view(-1, *[1] * (layer.deltas.ndim - 1)), basis=None)
