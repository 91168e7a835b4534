"""Iso-CTS: equal singular values for directions the tasks share and some that are each task's own."""

import torch
from torch import Tensor

from merganser.inputs.layers import LayerDeltas, LayerLowRank
from merganser.linalg.joint import polar, polar_factors
from merganser.linalg.lapack import product
from merganser.merging.method import Fraction, Scaling, method
from merganser.operators.subspaces import own_directions, specifics, summed


@method(
    family="spectral",
    formula=r"\lambda\, \bar\sigma\, \mathrm{polar}\big([U^{1:k}\; \bar U_1^{1:s} \cdots \bar U_T^{1:s}]\big)\, "
    r"\mathrm{polar}\big([V^{1:k}\; \bar V_1^{1:s} \cdots \bar V_T^{1:s}]\big)^\top, "
    r"\quad \textstyle\sum_t \Delta_t = U \Sigma V^\top, \; "
    r"(I - U^{1:k} U^{1:k\top}) \Delta_t = \bar U_t \bar\Sigma_t \bar V_t^\top",
    involvement="VDI",
    paper="Marczak et al., ICML 2025, arXiv:2502.04959",
    law="with common directions only it is Iso-C",
    cost="svd",
    ours=("scaling",),
    copies=8,
)
def iso_cts(layer: LayerDeltas | LayerLowRank, *, common_fraction: Fraction = 0.8, scaling: Scaling = 1.0) -> Tensor:
    """Join the sum's leading directions with each task's own beyond them, whiten both sides, give all the mean value.

    The tasks share what `common_fraction` leaves of the R directions: round((R - common) / T) each, half to even;
    the rest is common. The mean is over R. If no task gets its own direction, the merge is iso_c's.
    """
    rank, tasks = min(layer.shape), len(layer.tasks)
    own = own_directions(rank, tasks, common_fraction)
    common = summed(layer, rank - tasks * own)
    us, ss, vhs = zip(common, *specifics(layer, common.u, own), strict=True)
    # The tasks' own left directions are orthogonal to the common ones, which stay as they are.
    u = torch.cat([common.u, polar(torch.cat([common.u[:, :0], *us[1:]], 1), layer.dtype)], 1)
    whitening, _, right = polar_factors(torch.cat(vhs), layer.dtype)
    value = scaling * torch.cat(ss).sum() / rank
    return product(u, value * torch.linalg.multi_dot([whitening, right]), layer.dtype)
