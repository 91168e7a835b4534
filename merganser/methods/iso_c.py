"""Iso-C: the sum of the deltas with all its singular values equal."""

from torch import Tensor

from merganser.layers import LayerDeltas
from merganser.linalg.svd import compact
from merganser.operators.sums import scaled_sum
from merganser.registry import Scaling, method


@method(
    reads="deltas",
    family="spectral",
    formula=r"\lambda\, \bar\sigma\, U V^\top, "
    r"\quad \sum_t \Delta_t = U \Sigma V^\top, \; \bar\sigma = \tfrac{1}{r} \sum_i \sigma_i",
    involvement="VDI",
    efficiency="Medium",
    paper="Marczak et al., ICML 2025, arXiv:2502.04959",
    cost="svd",
)
def iso_c(layer: LayerDeltas, *, scaling: Scaling = 1.0) -> Tensor:
    """Replace the singular values of the sum by their mean over min(M, N), in the directions of its numerical rank."""
    summed = scaled_sum(layer.deltas, 1.0)
    u, s, vh = compact(summed)
    return (scaling * s.sum() / min(summed.shape) * (u @ vh)).to(summed.dtype)
