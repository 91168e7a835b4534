"""CART: low-rank task matrices about the average of the fine-tuned models."""

import torch
from torch import Tensor

from merganser.inputs.layers import LayerDeltas
from merganser.linalg.counts import count_of
from merganser.linalg.svd import truncations
from merganser.merging.method import Fraction, Scaling, method
from merganser.operators.sums import total
from merganser.operators.vectors import scaled_mean


@method(
    family="spectral",
    formula=r"\bar\Delta + \lambda \sum_t \mathrm{SVD}_k(\Delta_t - \bar\Delta)",
    involvement="VDI",
    paper="Choi et al., 2024, arXiv:2412.12153",
    law="rank 0 and full rank give the average",
    cost="svd",
    ours=("scaling",),
    vectors=lambda layer, **_: scaled_mean(layer),
    copies=6,
)
def cart(layer: LayerDeltas, *, rank_fraction: Fraction = 0.08, centre: bool = True, scaling: Scaling = 1.0) -> Tensor:
    """Add to the average the scaled sum of the centred deltas, each truncated to a share of its rank.

    The ablation `centre: false` truncates the deltas from the base instead of those from the average.
    """
    rank = count_of(rank_fraction, min(layer.shape))
    average = total(layer.deltas) / len(layer.deltas)
    start = average if centre else torch.zeros_like(average)
    merged = start.clone()
    for left, right in truncations((delta - start for delta in layer.deltas), rank, layer.dtype):
        merged.addmm_(left, right, alpha=scaling)
    return merged.to(layer.dtype)
