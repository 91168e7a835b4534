"""Large parameters read in pieces, a few rows at a time: memory holds pieces whatever the size of a parameter.

Each piece is a layer of its own. A merge that treats entry by entry, or row by row, gives the same bytes in pieces.
"""

from abc import abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod

from merganser.checkpoints.kinds import Kind
from merganser.checkpoints.tensors import Part, Rows
from merganser.inputs.layers import Layer, LayerDeltas, LayerSource, LayerTable, beneath

PIECE = 1 << 20  # values of all tasks together: 4 MiB in float32, of which malloc reuses what it frees


class DivisibleSource(LayerSource):
    """A source that can read some rows of a layer."""

    @abstractmethod
    def is_divisible(self, name: str) -> bool:
        """Tell whether rows of this parameter can be read alone."""

    @abstractmethod
    def rows(self, rows: Rows) -> LayerDeltas:
        """Read some rows of a parameter of all tasks, as a layer named by them."""


@dataclass(frozen=True)
class PiecedLayers(LayerSource):
    """A source whose large parameters of some kinds are read in pieces, each under a name of its own."""

    source: DivisibleSource
    divided: frozenset[Kind]
    size: int = PIECE  # values of all tasks in a piece

    @cached_property
    def table(self) -> LayerTable:
        """Return the source's table by pieces."""
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
        """Read one parameter, or a piece of one, of all tasks."""
        rows = self.table.rows.get(name)
        return self.source.rows(rows) if rows else self.source.layer(name)


def in_pieces(source: LayerSource, kinds: frozenset[Kind], size: int = PIECE) -> LayerSource:
    """Divide large parameters of these kinds into layers of some rows each, where they can be read so."""

    def divided(source: LayerSource) -> LayerSource:
        return PiecedLayers(source, kinds, size) if isinstance(source, DivisibleSource) else source

    return beneath(source, divided)


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
