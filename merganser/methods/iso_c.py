"""Iso-C: the sum of the deltas with all its singular values equal."""

from torch import Tensor

from merganser.inputs.layers import LayerDeltas, LayerLowRank
from merganser.linalg.lapack import product
from merganser.merging.method import Scaling, method
from merganser.operators.isotropic import whitened_sum


@method(
    family="spectral",
    formula=r"\lambda\, \bar\sigma\, U V^\top, "
    r"\quad \sum_t \Delta_t = U \Sigma V^\top, \; \bar\sigma = \tfrac{1}{r} \sum_i \sigma_i",
    involvement="VDI",
    paper="Marczak et al., ICML 2025, arXiv:2502.04959",
    law="all non-zero singular values are equal",
    cost="svd",
    ours=("scaling",),
)
def iso_c(layer: LayerDeltas | LayerLowRank, *, scaling: Scaling = 1.0) -> Tensor:
    """Replace the singular values of the sum by their mean over min(M, N), in the directions of its numerical rank."""
    left, s, right = whitened_sum(layer)
    return product(left, right.double() * (scaling * s.sum() / min(layer.shape)), layer.dtype)
