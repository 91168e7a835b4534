"""Large parameters read in pieces, a few rows at a time: memory holds pieces whatever the size of a parameter.

Each piece is a layer of its own. A merge that treats entry by entry, or row by row, gives the same bytes in pieces.
"""

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from math import prod
from threading import Lock

import torch
from torch import Tensor

from merganser.checkpoints.kinds import Kind
from merganser.checkpoints.tensors import Checkpoint, Part, Rows
from merganser.inputs.layers import (
    Layer,
    LayerDeltas,
    LayerSource,
    LayerTable,
    SomeLayers,
    UnreadLayer,
    replace_innermost,
    unread_layer,
)
from merganser.inputs.watched import unreported

PIECE = 1 << 20  # values of all tasks together: 4 MiB in float32, of which malloc reuses what it frees


class DivisibleSource(LayerSource):
    """A source that can read some rows of a layer."""

    @abstractmethod
    def is_divisible(self, name: str) -> bool:
        """Tell whether rows of this parameter can be read alone."""

    @abstractmethod
    def rows(self, rows: Rows) -> LayerDeltas:
        """Read some rows of a parameter of all tasks, as a layer named by them."""

    def unread(self, part: Part, base: Checkpoint | None = None) -> UnreadLayer:
        """Return the parts of one parameter, or of some of its rows, to read for a GPU."""
        read = partial(self.layer, part) if isinstance(part, str) else partial(self.rows, part)
        return unread_layer(read, part, base)


@dataclass(frozen=True)
class PiecedLayers(LayerSource):
    """A source that reads large parameters of some kinds in pieces, each a layer with its own name."""

    source: DivisibleSource
    divided: frozenset[Kind]
    size: int = PIECE  # values of all tasks in a piece

    @cached_property
    def table(self) -> LayerTable:
        table, kinds, shapes, rows = self.source.table, dict[str, Kind](), dict[str, tuple[int, ...]](), {}
        for name, shape in table.shapes.items():
            for part in self._parts(name, shape):
                kinds[str(part)], shapes[str(part)] = table.kinds[name], shape
                if not isinstance(part, str):
                    shapes[str(part)], rows[str(part)] = (part.stop - part.start, *shape[1:]), part
        return replace(table, kinds=kinds, shapes=shapes, rows=rows)

    def _parts(self, name: str, shape: tuple[int, ...]) -> Iterable[Part]:
        if self.source.kinds[name] not in self.divided or len(shape) < 2 or not self.source.is_divisible(name):
            return [name]  # a vector is one row
        return pieces_of(name, shape, self.size // len(self.source.tasks))

    def layer(self, name: str) -> Layer:
        rows = self.table.rows.get(name)
        return self.source.rows(rows) if rows else self.source.layer(name)

    def unread(self, name: str, base: Checkpoint | None = None) -> UnreadLayer:
        return self.source.unread(self.table.rows.get(name, name), base)


def in_pieces(source: LayerSource, kinds: frozenset[Kind], size: int = PIECE) -> LayerSource:
    """Divide large parameters of these kinds into layers of some rows each, if the source can read rows."""

    def divided(source: LayerSource) -> LayerSource:
        return PiecedLayers(source, kinds, size) if isinstance(source, DivisibleSource) else source

    return replace_innermost(source, divided)


def pieces_of(name: str, shape: tuple[int, ...], size: int) -> Iterator[Part]:
    """Divide a tensor into pieces of at most `size` values, but whole rows; one that is not larger stays whole.

    >>> list(map(str, pieces_of("proj", (8, 6), 20)))
    ['proj[0:3]', 'proj[3:6]', 'proj[6:8]']
    """
    step = max(1, size // max(1, prod(shape[1:])))
    if shape[0] <= step:
        yield name
        return
    yield from (Rows(name, start, min(start + step, shape[0]), shape[0]) for start in range(0, shape[0], step))


Merge = Callable[[LayerDeltas], Tensor]


@dataclass(frozen=True)
class PiecesInMemory(LayerSource):
    """One parameter that is in memory, as pieces of some rows each: views of it."""

    pieces: Sequence[LayerDeltas]

    @cached_property
    def table(self) -> LayerTable:
        return LayerTable(
            self.pieces[0].tasks,
            {piece.name: piece.kind for piece in self.pieces},
            {piece.name: piece.shape for piece in self.pieces},
            rows={piece.name: piece.rows for piece in self.pieces if piece.rows},
        )

    @cached_property
    def _by_name(self) -> dict[str, LayerDeltas]:
        return {piece.name: piece for piece in self.pieces}

    def layer(self, name: str) -> LayerDeltas:
        return self._by_name[name]


def cut(layer: LayerDeltas) -> list[LayerDeltas]:
    """Cut a layer into pieces of some rows; a small one, a vector, or one on a GPU, stays whole.

    >>> [piece.shape for piece in cut(LayerDeltas("w", "matrix", ("a",), torch.zeros(1, 3, 1 << 19)))]
    [(2, 524288), (1, 524288)]
    """
    if len(layer.shape) < 2 or layer.deltas.device.type != "cpu":
        return [layer]
    parts = list(pieces_of(layer.name, layer.shape, PIECE // len(layer.tasks)))
    return [layer if isinstance(part, str) else _piece(layer, part) for part in parts]


def _piece(layer: LayerDeltas, rows: Rows) -> LayerDeltas:
    chosen = slice(rows.start, rows.stop)
    base = None if layer.base is None else layer.base[chosen]
    return replace(layer, name=str(rows), deltas=layer.deltas[:, chosen], base=base, rows=rows, basis=None, start=None)


@dataclass
class _Parameter:
    """A parameter whose pieces are being merged."""

    pieces: Sequence[str]
    left: int  # pieces that are not merged yet
    lock: Lock = field(default_factory=Lock)
    merge: Merge | None = None


class ByParameter:
    """A merge of layers that begins with a pass over all pieces of a parameter, when its first piece is merged.

    `bind` is given the parameter's pieces as a source, and returns the merge of one of them.
    """

    def __init__(self, layers: LayerSource, bind: Callable[[LayerSource], Merge]) -> None:
        self._layers, self._bind = unreported(layers), bind
        self._lock = Lock()
        self._known: dict[str, _Parameter] = {}

    @cached_property
    def _pieces(self) -> dict[str, list[str]]:
        table, parts = self._layers.table, dict[str, list[str]]()
        for name in table.kinds:
            if rows := table.rows.get(name):
                parts.setdefault(rows.name, []).append(name)
        return parts

    def __call__(self, layer: LayerDeltas) -> Tensor:
        """Merge a layer, or a piece of one."""
        if layer.rows:
            return self._merge_of(layer.rows.name)(layer)
        pieces = cut(layer)
        merge = self._bind(PiecesInMemory(pieces))
        if len(pieces) == 1:
            return merge(layer)
        merged = torch.empty(layer.shape, dtype=layer.dtype)
        for piece in pieces:
            assert piece.rows
            merged[piece.rows.start : piece.rows.stop] = merge(piece)
        return merged

    def _merge_of(self, name: str) -> Merge:
        """Return the merge of a parameter's pieces; the first call reads them all, others wait for it."""
        with self._lock:
            pieces = self._pieces[name]
            known = self._known.setdefault(name, _Parameter(pieces, len(pieces)))
        with known.lock:
            merge = known.merge = known.merge or self._bind(
                replace_innermost(self._layers, partial(SomeLayers, chosen=known.pieces))
            )
            known.left -= 1
        if not known.left:
            with self._lock:
                self._known.pop(name, None)
        return merge
