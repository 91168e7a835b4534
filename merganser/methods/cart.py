"""CART: low-rank task matrices about the average of the fine-tuned models."""

from torch import Tensor

from merganser.layers import LayerDeltas
from merganser.linalg.svd import truncated
from merganser.operators.counts import count_of
from merganser.operators.sums import total
from merganser.operators.vectors import mean
from merganser.registry import Fraction, Scaling, method


@method(
    reads="deltas",
    family="spectral",
    formula=r"\bar\Delta + \lambda \sum_t \mathrm{SVD}_k(\Delta_t - \bar\Delta)",
    involvement="VDI",
    efficiency="Medium",
    paper="Choi et al., 2024, arXiv:2412.12153",
    cost="svd",
    vectors=mean,
)
def cart(layer: LayerDeltas, *, rank_fraction: Fraction = 0.08, scaling: Scaling = 1.0) -> Tensor:
    """Add to the average the scaled sum of the centred deltas, each truncated to a share of its rank."""
    dtype, shape = layer.deltas.dtype, layer.deltas.shape
    rank = count_of(rank_fraction, min(shape[1:]))
    average = total(layer.deltas) / shape[0]
    merged = average.clone()
    for delta in layer.deltas:
        merged += scaling * truncated((delta - average).to(dtype), rank)
    return merged.to(dtype)
