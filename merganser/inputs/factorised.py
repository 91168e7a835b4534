"""Factors computed on the fly, for methods that need factors of deltas whose factors are not on disk."""

from torch.nn.functional import pad

from merganser.inputs.factors import FactorSettings
from merganser.inputs.layers import Layer, LayerFactors, LayerLowRank
from merganser.linalg.batched import factorise_all
from merganser.linalg.decompositions import Factors
from merganser.linalg.svd import factorise_low_rank


def factorised(layer: Layer, settings: FactorSettings) -> Layer:
    """Decompose a matrix of all tasks, adapters from their factors at full rank; return all else unchanged."""
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
