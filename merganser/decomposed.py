"""Factors computed on the fly, for methods that read them of deltas that are not decomposed on disk."""

from functools import partial

from merganser.factors import FactorSettings
from merganser.layers import Layer, LayerDeltas, LayerFactors, LayerSource, MappedLayers
from merganser.linalg.svd import factorise


def decomposed(source: LayerSource, settings: FactorSettings) -> LayerSource:
    """Return a source of deltas with its matrices as factors, decomposed whenever they are read."""
    return MappedLayers(source, partial(_factorised, settings=settings))


def _factorised(layer: Layer, settings: FactorSettings) -> Layer:
    """Decompose a matrix of all tasks; vectors stay deltas."""
    if not isinstance(layer, LayerDeltas) or layer.kind == "vector":
        return layer
    rank = settings.rank(layer.shape)
    factors = tuple(factorise(delta, rank) for delta in layer.deltas)
    return LayerFactors(layer.name, layer.tasks, factors, layer.seed, norms=layer.norms)
