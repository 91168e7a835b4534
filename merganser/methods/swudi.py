"""SWUDI: where WUDI's descent would be after some time, in closed form and in the leading directions alone."""

import torch
from torch import Tensor

from merganser.inputs.layers import LayerDeltas
from merganser.linalg.counts import ceiling_of
from merganser.merging.method import Positive, PositiveFraction, Scaling, method
from merganser.operators.interference import minimum
from merganser.operators.sums import total


@method(
    family="spectral",
    formula=r"\lambda \bigl(S + (B A^{+} - S) V \operatorname{diag}(1 - e^{-\tau \mu}) V^\top\bigr), "
    r"\quad S = \sum_t \Delta_t, \quad A = \sum_t \frac{\Delta_t^\top \Delta_t}{\lVert \Delta_t \rVert_F^2}, "
    r"\quad B = \sum_t \frac{\Delta_t \Delta_t^\top \Delta_t}{\lVert \Delta_t \rVert_F^2}, "
    r"\quad A V = V \operatorname{diag} \mu",
    paper="Wei et al., under review (in the authors' code of arXiv:2505.19892)",
    law="at time 0 it is the sum of the deltas, after a long time in all directions wudi's minimum",
    cost="joint svd",
    ours=("scaling",),
    copies=8,
)
def swudi(
    layer: LayerDeltas, *, rank_fraction: PositiveFraction = 0.65, time: Positive = 300.0, scaling: Scaling = 1.0
) -> Tensor:
    """Go from the sum of the deltas towards the least interference, along each direction by its curvature.

    Gradient descent in small steps leaves the share exp(-time * curvature) of the way to the minimum. It moves in
    the share `rank_fraction` of a map's N input directions that has the largest curvatures. The defaults are the
    authors' for CLIP; for language models they take 0.85.
    """
    least, start = minimum(layer.deltas), total(layer.deltas)
    moved = ceiling_of(rank_fraction, layer.shape[1])
    axes, curvatures = least.axes[:, :moved], least.curvatures[:moved]
    way = (least.coordinates[:, :moved] - start @ axes) * -torch.expm1(-time * curvatures)
    return (scaling * (start + way @ axes.mT)).to(layer.dtype)
