"""Iso-C: the sum of the deltas with all its singular values equal."""

from torch import Tensor

from merganser.inputs.layers import LayerDeltas, LayerLowRank
from merganser.linalg.lapack import product
from merganser.merging.method import Fraction, Scaling, method
from merganser.operators.subspaces import whitened_sum
from merganser.operators.sums import scaled_sum


@method(
    family="spectral",
    formula=r"\lambda\, U \big((1 - \beta) \Sigma + \beta\, \bar\sigma I\big) V^\top, "
    r"\quad \sum_t \Delta_t = U \Sigma V^\top, \; \bar\sigma = \tfrac{1}{r} \sum_i \sigma_i",
    involvement="VDI",
    paper="Marczak et al., ICML 2025, arXiv:2502.04959",
    law="all non-zero singular values are equal",
    cost="svd",
    ours=("scaling",),
    copies=5,
)
def iso_c(layer: LayerDeltas | LayerLowRank, *, beta: Fraction = 1.0, scaling: Scaling = 1.0) -> Tensor:
    """Replace the singular values of the sum by their mean over min(M, N), in the directions of its numerical rank.

    With `beta` below 1 by that share of the mean and the rest of their own: 0 is task arithmetic.
    """
    left, s, right = whitened_sum(layer)
    even = product(left, right.double() * (beta * scaling * s.sum() / min(layer.shape)), layer.dtype)
    if beta == 1:
        return even
    whole = layer.dense() if isinstance(layer, LayerLowRank) else layer
    return even + scaled_sum(whole.deltas, (1 - beta) * scaling)
