"""DRM-H: Decom-Renorm-Merge of the deltas set side by side, with a shared left basis."""

import torch
from torch import Tensor

from merganser.inputs.layers import LayerDeltas, LayerLowRank
from merganser.linalg import lapack
from merganser.merging.method import PositiveFraction, Scaling, method, spaced
from merganser.operators.drm import (
    Averaging,
    Decomposition,
    Pruning,
    averaged,
    decomposed,
    leading_joint_directions,
    prune_all_,
    renormalised,
)


@method(
    family="joint",
    formula=r"\lambda\, U\, \mathrm{mean}_{agree}\big(\mathrm{prune}(S_t \tilde V_t^\top)\big), "
    r"\quad [\Delta_1 \cdots \Delta_T] = U S [V_1^\top \cdots V_T^\top]",
    involvement="VDI",
    paper="Chaichana et al., 2025, arXiv:2505.23117",
    law="without pruning, election and averaging it is the sum; the order of the tasks does not matter",
    joint="rows",
    searched={"scaling": spaced(0.8, 1.5, 0.1), "density": spaced(0.1, 1.0, 0.1)},
    copies=10,
)
def drm_h(
    layer: LayerDeltas | LayerLowRank,
    *,
    decomposition: Decomposition = "svd",
    rank_fraction: PositiveFraction = 1.0,
    density: PositiveFraction = 0.2,
    pruning: Pruning = "together",
    renormalise: bool = True,
    elect: bool = True,
    averaging: Averaging = "disjoint",
    scaling: Scaling = 1.0,
) -> Tensor:
    """Decompose the deltas jointly, renormalise each task's right vectors, prune all together, elect signs, average.

    `pruning: each` keeps the largest entries of each task instead of those of all. The paper's ablations leave one
    step out: `renormalise: false`, `density: 1` (no pruning), `elect: false`, or `averaging: simple` over all tasks
    instead of those that agree (`averaging: sum` divides by nothing); or keep the leading `rank_fraction` of the
    joint directions. `decomposition: qr` takes Q and R instead of U and S V^T: then the order of the tasks matters,
    for which the paper's appendix E.2 rejects it.
    """
    factors = leading_joint_directions(decomposed(layer, decomposition), rank_fraction)

    def merged(dtype: torch.dtype) -> Tensor | None:
        space = renormalised(factors, layer, dtype, renormalise)
        return averaged(space, elect, averaging) if prune_all_(space, density, pruning) else None

    # Without election no sign asks for exact entries again, so that the sum of all is exact in float64 only.
    product = merged(torch.float32) if elect else None
    if product is None:
        product = merged(torch.float64)
    assert product is not None, "nothing is in doubt in float64"
    return scaling * lapack.product(factors.u, product.double(), layer.dtype)
