"""Factors computed on the fly, for methods that need factors of deltas whose factors are not on disk."""

from functools import partial

from torch.nn.functional import pad

from merganser.inputs.factors import FactorSettings
from merganser.inputs.layers import Layer, LayerFactors, LayerLowRank, LayerSource, MappedLayers
from merganser.linalg.batched import factorise_all
from merganser.linalg.decompositions import Factors
from merganser.linalg.svd import factorise_low_rank


class FactorisedLayers(MappedLayers):
    """Deltas whose matrices are decomposed each time they are read, on their own device."""


def factorised(source: LayerSource, settings: FactorSettings) -> LayerSource:
    """Wrap a source of deltas so that its matrices are read as factors."""
    return FactorisedLayers(source, partial(_factors_of, settings=settings))


def _factors_of(layer: Layer, settings: FactorSettings) -> Layer:
    """Decompose a matrix of all tasks, adapters from their factors and at their full rank; return vectors unchanged."""
    if isinstance(layer, LayerFactors) or layer.kind == "vector":
        return layer
    if isinstance(layer, LayerLowRank):
        full = min(layer.shape)
        found = (factorise_low_rank(*sides) for sides in zip(layer.left, layer.right, strict=True))
        factors = tuple(Factors(u, pad(s, (0, full - len(s))), vh) for u, s, vh in found)
    else:
        rank = settings.rank(layer.shape)
        factors = factorise_all(layer.deltas, rank)
    return LayerFactors(layer.name, layer.tasks, factors, layer.seed, norms=layer.norms)
