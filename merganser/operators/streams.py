"""Walk the layers in a method's first pass. Legend: T tasks."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol, TypeVar, cast

from torch import Tensor

from merganser.inputs.layers import Layer, LayerDeltas, Sample

R = TypeVar("R")


class Stream(Protocol):
    """Layers to walk: a LayerSource, or what stands for one."""

    @property
    def names(self) -> tuple[str, ...]:
        """Return the parameters' names."""

    def map(self, function: Callable[[Layer], R]) -> Iterator[R]:
        """Read each layer and apply a function that keeps nothing of it; results in names' order."""

    def spread(self, function: Callable[[str], R]) -> Iterator[R]:
        """Apply a function to each name, in the threads of `map`."""

    def sample(self, name: str, run: int, every: int) -> Sample:
        """Read every so manyth run of entries of one parameter, on the CPU."""


def over_deltas(layers: Stream, look: Callable[[LayerDeltas], R]) -> Iterator[R]:
    """Look at every layer of a method that reads deltas; `look` keeps nothing of it. Results in the layers' order."""
    return layers.map(cast(Callable[[Layer], R], look))


def over_stacks(layers: Stream, look: Callable[[Tensor], R]) -> Iterator[R]:
    """Look at the deltas (T, ...) of every layer; `look` keeps nothing of them. Results in the layers' order."""
    return over_deltas(layers, lambda layer: look(layer.deltas))


@dataclass(frozen=True)
class Stacks:
    """The layers' deltas, for `linalg.select` to look for cuts in."""

    layers: Stream

    def each(self, look: Callable[[Tensor], R]) -> Iterator[R]:
        """Look at the deltas (T, ...) of every layer."""
        return over_stacks(self.layers, look)

    def samples(self, run: int, every: int) -> Iterator[Sample]:
        """Read a sample of each layer."""
        return self.layers.spread(lambda name: self.layers.sample(name, run, every))
