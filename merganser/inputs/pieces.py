"""Large parameters read in pieces, a few rows at a time: memory holds pieces whatever the size of a parameter.

Each piece is a layer of its own. A merge that treats entry by entry, or row by row, gives the same bytes in pieces.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Protocol

from torch import Tensor

from merganser.checkpoints.kinds import Kind
from merganser.checkpoints.tensors import Part, Rows, name_of
from merganser.inputs.layers import Layer, LayerDeltas, LayerSource, Learned, SequentialSource

PIECE = 1 << 20  # values of all tasks together: 4 MiB in float32, of which malloc reuses what it frees


class Divisible(LayerSource, Protocol):
    """A source that can read some rows of a layer."""

    def is_divisible(self, name: str) -> bool:
        """Tell whether rows of this parameter can be read alone."""

    def rows(self, rows: Rows) -> LayerDeltas:
        """Read some rows of a parameter of all tasks, as a layer named by them."""


@dataclass(frozen=True)
class PiecedLayers(SequentialSource):
    """A source whose large parameters are read in pieces, each under a name of its own."""

    source: Divisible
    divided: frozenset[Kind]
    size: int = PIECE  # values of all tasks in a piece

    @cached_property
    def places(self) -> dict[str, Part]:
        """Return, by the layers' names, the parameter that each is, or the rows of one."""
        return {str(part): part for name in self.source.names for part in self._parts(name)}

    def _parts(self, name: str) -> list[Part]:
        shape = self.source.shapes[name]
        if self.source.kinds[name] not in self.divided or len(shape) < 2 or not self.source.is_divisible(name):
            return [name]  # a vector is one row
        return list(pieces_of(name, shape, self.size // len(self.tasks)))

    @property
    def tasks(self) -> tuple[str, ...]:
        """Return the tasks' names."""
        return self.source.tasks

    @property
    def embeddings(self) -> Mapping[str, Tensor]:
        """Return the text embedding of each task's class names."""
        return self.source.embeddings

    @property
    def learned(self) -> Learned | None:
        """Return what was learned of the source's layers."""
        return self.source.learned

    @property
    def names(self) -> tuple[str, ...]:
        """Return the layers' names."""
        return tuple(self.places)

    @cached_property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Return the shape of one task's delta of each layer."""
        shapes = self.source.shapes
        return {
            name: shapes[part] if isinstance(part, str) else (part.stop - part.start, *shapes[part.name][1:])
            for name, part in self.places.items()
        }

    @cached_property
    def kinds(self) -> Mapping[str, Kind]:
        """Return each layer's kind."""
        kinds = self.source.kinds
        return {name: kinds[name_of(part)] for name, part in self.places.items()}

    def layer(self, name: str) -> Layer:
        """Read one parameter, or a piece of one, of all tasks."""
        part = self.places[name]
        return self.source.layer(part) if isinstance(part, str) else self.source.rows(part)

    def parameter(self, name: str) -> str:
        """Return the parameter that a layer is, or of which it is some rows."""
        return name_of(self.places[name])


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
