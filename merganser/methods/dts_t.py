"""DTS-T: each task's leading singular triples, the vectors thresholded to two bits an element."""

from collections.abc import Callable

from merganser.inputs.layers import LayerFactors, LayerSource
from merganser.merging.method import PositiveFraction, method
from merganser.operators.shares import triples_kept
from merganser.overlays.budget import ADAPTIVE, THRESHOLDED, Adaptive
from merganser.overlays.parts import Parts
from merganser.overlays.thresholded import thresholded_parts, thresholded_vectors


@method(
    family="compressed",
    formula=r"\hat U_t \Sigma_t \hat V_t^\top, \quad \hat U_t, \hat V_t \text{ in two bits an element}",
    paper="Stay Unique, Stay Efficient (DTS), 2025, arXiv:2512.01461",
    law="[1, 1, 5, -2, -9] becomes the paper's example; thresholding twice equals once; norms and signs are kept",
    vectors=thresholded_vectors,
    rank_fraction=THRESHOLDED.share_needed,
    within=ADAPTIVE,
)
def dts_t(
    layers: LayerSource, *, rank_fraction: PositiveFraction | Adaptive = 0.3, ratio: PositiveFraction = 0.01
) -> Callable[[LayerFactors], Parts]:
    """Threshold U and V of each task's leading triples into four groups each, one scale a group; singular values stay.

    With `rank_fraction` adaptive (the paper's DTS-T*): the largest one, the same for all matrices, with which a task
    takes at most `ratio` of the float32 bytes of the merged parameters on disk. A matrix too small to keep a triple is
    thresholded directly, like a vector.
    """
    share = THRESHOLDED.share(layers, rank_fraction, ratio)
    return lambda layer: thresholded_parts(layer, triples_kept(layer, share))
