"""DTS-D: as DTS-T, on each task's difference to a merged model."""

from collections.abc import Callable

from merganser.inputs.layers import LayerFactors, LayerSource
from merganser.merging.method import PositiveFraction, Truncation, method
from merganser.methods.dts_t import dts_t, share_needed
from merganser.overlays.budget import ADAPTIVE
from merganser.overlays.parts import Parts
from merganser.overlays.thresholded import Groups, Thresholds, thresholded_vectors


@method(
    reads="differences",
    family="compressed",
    formula=r"\hat U_t \Sigma_t \hat V_t^\top, \quad U_t \Sigma_t V_t^\top = \mathrm{SVD}_k(W_t - W_{merged})",
    paper="Stay Unique, Stay Efficient (DTS), 2025, arXiv:2512.01461",
    law="it codes differences as DTS-T codes task vectors",
    cost="svd",
    vectors=thresholded_vectors,
    rank_fraction=share_needed,
    within=ADAPTIVE,
    copies=6,
)
def dts_d(
    layers: LayerSource,
    *,
    rank_fraction: Truncation = 0.3,
    ratio: PositiveFraction = 0.01,
    decompose: bool = True,
    thresholds: Thresholds = "medians",
    groups: Groups = "tensor",
    scaled: bool = True,
) -> Callable[[LayerFactors], Parts]:
    """Threshold U and V of the leading triples of each task's difference to a merged model, onto which it is added.

    Four groups each, one scale a group; singular values stay. No base model is needed. With `rank_fraction` adaptive
    (the paper's DTS-D*): the largest one, the same for all matrices, with which a task takes at most `ratio` of the
    float32 bytes of the merged parameters on disk. `decompose`, `thresholds`, `groups` and `scaled` are those of dts_t.
    """
    return dts_t(
        layers,
        rank_fraction=rank_fraction,
        ratio=ratio,
        decompose=decompose,
        thresholds=thresholds,
        groups=groups,
        scaled=scaled,
    )
