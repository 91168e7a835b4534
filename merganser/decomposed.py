"""Factors computed on the fly, for methods that read them of deltas that are not decomposed on disk."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from torch import Tensor

from merganser.factors import FactorSettings
from merganser.layers import Kind, Layer, LayerDeltas, LayerFactors, LayerSource
from merganser.linalg.svd import factorise


@dataclass(frozen=True)
class Decomposed:
    """A source of deltas whose matrices come as factors, decomposed whenever they are read; vectors stay deltas."""

    source: LayerSource
    settings: FactorSettings

    @property
    def tasks(self) -> tuple[str, ...]:
        """Return the tasks' names."""
        return self.source.tasks

    @property
    def names(self) -> tuple[str, ...]:
        """Return the merged parameters' names."""
        return self.source.names

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Return the shape of one task's delta of each parameter."""
        return self.source.shapes

    @property
    def kinds(self) -> Mapping[str, Kind]:
        """Return each parameter's kind."""
        return self.source.kinds

    @property
    def embeddings(self) -> Mapping[str, Tensor]:
        """Return the text embedding of each task's class names."""
        return self.source.embeddings

    def layer(self, name: str) -> Layer:
        """Read one parameter of all tasks and decompose it if it is a matrix."""
        layer = self.source.layer(name)
        if not isinstance(layer, LayerDeltas) or layer.kind == "vector":
            return layer
        rank = self.settings.rank(tuple(layer.deltas.shape[1:]))
        factors = tuple(factorise(delta, rank) for delta in layer.deltas)
        return LayerFactors(name, layer.tasks, factors, layer.seed, norms=layer.norms)

    def __iter__(self) -> Iterator[Layer]:
        return (self.layer(name) for name in self.names)
