"""DRM-V: Decom-Renorm-Merge of the deltas set one above the other, with a shared right basis."""

from torch import Tensor

from merganser.inputs.layers import LayerDeltas, LayerLowRank
from merganser.merging.method import PositiveFraction, Scaling, method, spaced
from merganser.methods.drm_h import drm_h
from merganser.operators.drm import Averaging, Decomposition, Pruning, transposed


@method(
    family="joint",
    formula=r"\mathrm{DRM_H}(\Delta_1^\top, \ldots, \Delta_T^\top)^\top",
    involvement="VDI",
    paper="Chaichana et al., 2025, arXiv:2505.23117",
    law="it is DRM-H on the transposes",
    joint="columns",
    searched={"scaling": spaced(0.8, 1.5, 0.1), "density": spaced(0.1, 1.0, 0.1)},
    copies=10,
)
def drm_v(
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
    """Merge the transposed deltas as drm_h does, and transpose the result.

    Its ablations are drm_h's: `decomposition: qr`, `rank_fraction`, `renormalise: false`, `density: 1`,
    `pruning: each`, `elect: false`, `averaging: simple` or sum.
    """
    return drm_h(
        transposed(layer),
        decomposition=decomposition,
        rank_fraction=rank_fraction,
        density=density,
        pruning=pruning,
        renormalise=renormalise,
        elect=elect,
        averaging=averaging,
        scaling=scaling,
    ).mT
